use super::*;
use crate::samples;
use rand::SeedableRng;

#[test]
fn packed_instances_round_trip_for_random_schemas() {
    for seed in 0..200 {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let schema = samples::random_schema(&mut random);
        let layout = Layout::compile(&schema);
        for _ in 0..20 {
            let instance = samples::random_instance(&schema, &mut random);
            let mut packed = Vec::new();
            layout.encode(&instance, &mut packed).unwrap();
            let decoded = layout.decode(&packed);
            assert!(samples::same(&decoded, &instance), "seed {seed}: {decoded:?} {instance:?}");
            assert_eq!(layout.sections(&packed).ends.last().copied(), Some(packed.len() as u32));
            let shape = KeyShape::compile(&schema, &schema.tables[0].primary_key);
            let key = schema.root_key_of_row(0, &instance.tables[0][0]).unwrap();
            assert_eq!(shape.root_key(&layout, &packed), Some(key.clone()));
            assert!(shape.matches(&layout, &packed, key.as_bytes()));
            assert_eq!(shape.hash(&layout, &packed), hash_key(key.as_bytes()));
        }
    }
}
