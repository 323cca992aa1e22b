//! The example of the direct mode, run as it is shown.

use crate::scene::Scene;

#[allow(dead_code, reason = "the program itself reads its arguments")]
#[path = "../../../../examples/direct_mode.rs"]
mod example;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_counts_up_in_the_backend() {
    let scene = Scene::new(3).await;
    let config = serde_json::to_vec(&scene.config("app-0")).unwrap();
    let place = "SELECT place FROM account WHERE id = 1";
    for counted in [11, 12] {
        // the second time it goes on with the journal that it left
        example::count_up(&config).await.unwrap();
        assert_eq!(scene.postgres.number(place).await, counted);
    }
}
