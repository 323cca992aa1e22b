use super::*;
use crate::samples;
use rand::{Rng, RngExt, SeedableRng};

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

/// How many damaged forms to look at; a second's worth unless the environment asks for more.
fn cases() -> u64 {
    std::env::var("ENGINE_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(20_000)
}

#[test]
fn arbitrary_bytes_are_read_as_something_and_never_panic() {
    const PER_SCHEMA: u64 = 250;
    let mut met = [0_u64; 4];
    for seed in 0..cases().div_ceil(PER_SCHEMA) {
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let schema = samples::random_schema(&mut random);
        let layout = Layout::compile(&schema);
        let shape = KeyShape::compile(&schema, &schema.tables[0].primary_key);
        let mut packed = Vec::new();
        for case in 0..PER_SCHEMA {
            if case % 10 == 0 {
                packed.clear();
                let instance = samples::random_instance(&schema, &mut random);
                layout.encode(&instance, &mut packed).unwrap();
            }
            let bytes = damaged(&packed, &mut random);
            look_at(&schema, &layout, &bytes, &mut random, &mut met);
            let key = shape.root_key(&layout, &bytes);
            if let Some(key) = &key {
                assert!(shape.matches(&layout, &bytes, key.as_bytes()), "{seed} {case}");
                assert_eq!(shape.hash(&layout, &bytes), hash_key(key.as_bytes()));
            }
        }
    }
    assert!(met.iter().all(|n| *n > cases() / 20), "rows, NULLs, texts, patches: {met:?}");
}

/// Bits flipped, bytes put in, cut off or added; or nothing but noise.
fn damaged(packed: &[u8], random: &mut impl Rng) -> Vec<u8> {
    let mut bytes = packed.to_vec();
    match random.random_range(0..8) {
        0 => bytes = (0..random.random_range(0..200)).map(|_| random.random()).collect(),
        1 => bytes.truncate(random.random_range(0..=packed.len())),
        2 => bytes.insert(random.random_range(0..=packed.len()), random.random()),
        3 => bytes.extend((0..random.random_range(0..40)).map(|_| random.random::<u8>())),
        _ => {
            for _ in 0..random.random_range(1..5) {
                let at = random.random_range(0..bytes.len());
                bytes[at] ^= 1 << random.random_range(0..8);
            }
        }
    }
    bytes
}

/// Every way of reading the bytes gives the same, and overwriting them stays inside.
fn look_at(
    schema: &GroupSchema,
    layout: &Layout,
    bytes: &[u8],
    random: &mut impl Rng,
    met: &mut [u64; 4],
) {
    let mut rest = bytes;
    let root = layout.root(bytes).unwrap();
    let (mut one, mut all) = (Scratch::new(), Scratch::new());
    for (table, columns) in schema.tables.iter().map(|t| &t.columns).enumerate() {
        let view = layout.view(table, rest).unwrap();
        assert_eq!(view.length(), layout.skip(table, rest));
        let above = (table > 0).then_some(&root);
        for row in 0..view.rows().min(70) {
            met[0] += 1;
            let mut column = 0;
            view.each_value(above, row, &mut all, |value| {
                let again = view.value(above, row, column, &mut one);
                assert_eq!(format!("{value:?}"), format!("{again:?}"));
                met[1] += u64::from(value.is_null());
                met[2] += u64::from(matches!(value, ValueRef::Text(_)));
                column += 1;
            });
            assert_eq!(column, columns.len());
            let column = random.random_range(0..columns.len());
            let value = samples::random_value(&columns[column], random);
            if let Some(patch) = view.patch(row, column, &value) {
                let mut patched = rest.to_vec();
                patch.apply(&mut patched);
                met[3] += 1;
            }
        }
        rest = &rest[view.length()..];
    }
    let decoded = layout.decode(bytes);
    assert_eq!(decoded.tables.len(), schema.tables.len());
    for (column, _) in schema.tables[0].columns.iter().enumerate() {
        layout.root_value(bytes, column, &mut one);
    }
    layout.sections(bytes);
}
