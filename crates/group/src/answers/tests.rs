use super::*;
use cachetier_model::Value;
use uuid::Uuid;

fn request(id: i64, key: &str, digest: u128) -> Request {
    let root = RootKey::encode(&[Value::Int(id)]).unwrap();
    let key = IdempotencyKey::new(key.to_owned()).unwrap();
    Request { name: Arc::new(Name { root, key }), digest }
}

fn answer(sequence: u64, fate: Fate) -> Answer {
    let position = Position { journal: Uuid::nil(), sequence };
    Answer { position, rows: Arc::from([1]), fate, durable_at: sequence }
}

fn kept(window_seconds: u64, max_bytes: u64) -> Arc<Answers> {
    Answers::new(&IdempotencyConfig { window_seconds, max_bytes })
}

fn known(answers: &Arc<Answers>, request: &Request) -> Option<u64> {
    match answers.begin(request) {
        Found::Known(answer) => Some(answer.position.sequence),
        _ => None,
    }
}

#[test]
fn r26_one_call_of_a_name_is_the_first_and_its_answer_is_everybodys() {
    let answers = kept(60, 1 << 20);
    let first = request(1, "a", 7);
    let Found::First(claim) = answers.begin(&first) else { panic!("not the first") };
    assert!(matches!(answers.begin(&first), Found::UnderWay));
    assert!(matches!(answers.begin(&request(1, "a", 8)), Found::Another));
    assert!(matches!(answers.begin(&request(2, "a", 8)), Found::First(_)), "its own instance");
    let done = claim.settle(|| Ok::<_, ()>(Some(answer(5, Fate::Done))));
    assert_eq!((done, claim.is_held()), (Ok(true), false));
    drop(claim);
    assert_eq!(known(&answers, &first), Some(5));
    assert!(matches!(answers.begin(&request(1, "a", 8)), Found::Another));
    // one that came to nothing leaves the key free
    let second = request(1, "b", 7);
    drop(answers.begin(&second));
    assert!(matches!(answers.begin(&second), Found::First(_)));
}

#[test]
fn r26_who_was_overtaken_by_an_answer_from_elsewhere_does_not_commit() {
    let answers = kept(60, 1 << 20);
    let first = request(1, "a", 7);
    let Found::First(claim) = answers.begin(&first) else { panic!("not the first") };
    answers.put(&first, answer(9, Fate::Done));
    assert!(!claim.is_held());
    assert_eq!(claim.settle(|| Ok::<_, ()>(Some(answer(10, Fate::Done)))), Ok(false));
    drop(claim);
    assert_eq!(known(&answers, &first), Some(9));
}

#[tokio::test(start_paused = true)]
async fn r26_answers_go_after_the_window_and_the_oldest_where_there_is_no_room() {
    let answers = kept(60, ENTRY_BYTES * 4);
    for id in 0..5 {
        answers.put(&request(id, "a", 7), answer(id as u64 + 1, Fate::Done));
    }
    let figures = answers.figures();
    assert!(figures.bytes <= ENTRY_BYTES * 4 && figures.forgotten == 5 - figures.answers);
    assert_eq!(known(&answers, &request(4, "a", 7)), Some(5));
    assert_eq!(known(&answers, &request(0, "a", 7)), None, "the oldest went");
    tokio::time::advance(Duration::from_secs(59)).await;
    answers.expire();
    assert_eq!(known(&answers, &request(4, "a", 7)), Some(5));
    tokio::time::advance(Duration::from_secs(1)).await;
    answers.expire();
    assert_eq!(known(&answers, &request(4, "a", 7)), None);
    assert_eq!(answers.figures().bytes, 0);
}

#[test]
fn r16_r26_what_the_backend_refused_leaves_its_key_free() {
    let answers = kept(60, 1 << 20);
    let (refused, accepted, aside) = (request(1, "a", 7), request(1, "b", 7), request(1, "c", 7));
    answers.put(&refused, answer(1, Fate::Undecided));
    answers.put(&accepted, answer(2, Fate::Undecided));
    answers.put(&aside, answer(3, Fate::Undecided));
    let slot: SlotSet = std::iter::once(refused.name.root.slot()).collect();
    assert!(answers.of_slots(&slot, 1 << 20).0.is_empty(), "undecided ones stay");
    answers.refused(1);
    assert_eq!(answers.awaiting(2).map(|(_, a)| a.fate), Some(Fate::Done));
    answers.accepted(2, 20);
    answers.set_aside(3);
    assert!(matches!(answers.begin(&refused), Found::First(_)));
    assert_eq!(known(&answers, &accepted), Some(2));
    let fate = |request| match answers.begin(request) {
        Found::Known(answer) => Some(answer.fate),
        _ => None,
    };
    assert_eq!(fate(&aside), Some(Fate::SetAside));
    answers.resolved(&aside.name.root, true);
    assert_eq!((fate(&aside), fate(&accepted)), (None, Some(Fate::Done)));
    let (slots, moved) = answers.of_slots(&slot, 1 << 20);
    assert_eq!((slots.len(), moved.len()), (1, 1));
    answers.gone(&slot);
    assert_eq!(known(&answers, &accepted), None);
}
