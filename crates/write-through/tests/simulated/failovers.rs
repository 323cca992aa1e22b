//! A backend that went back in time: a lagging standby was promoted.

use super::histories::insert;
use super::*;
use cachetier_write_through::Reason;

#[test]
fn r11_a_backend_that_lacks_confirmed_commits_is_not_read() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let idle_position_interval = Duration::from_secs(3_600);
        let options =
            WriteThroughOptions { idle_position_interval, ..options(2, BackendCommit::Sync) };
        let mut node = Node::start(&backend, options).await;
        let standby = backend.standby();
        node.commit(1, insert(1, 1));
        node.settle(&backend).await;
        let as_of = node.through.as_of().unwrap();
        let keys = [key(1)];
        assert!(backend.read_instances(&keys, Some(&as_of)).await.unwrap()[0].is_some());
        backend.fail_over(standby);
        let refused = backend.read_instances(&keys, Some(&as_of)).await.unwrap_err();
        assert_eq!(refused.reason, Reason::BackendNotReady);
        // what is asked for does not go back with the backend
        node.through.look();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let now = node.through.as_of().unwrap().positions;
        assert!(now.iter().zip(&as_of.positions).all(|(now, before)| now >= before));
        let begun = tokio::time::Instant::now();
        while backend.read_instances(&keys, Some(&as_of)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "idle lanes look when they are asked to"
        );
        assert!(backend.read_instances(&keys, Some(&as_of)).await.unwrap()[0].is_some());
        node.stop.cancel();
    });
}

#[test]
fn r11_a_lane_that_caught_up_is_where_it_was_also_where_its_last_move_had_no_rows() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let mut node = Node::start(&backend, options(1, BackendCommit::Sync)).await;
        let standby = backend.standby();
        node.commit(1, insert(1, 1));
        node.settle(&backend).await;
        // frames that are no transactions, which the idle lane's position follows
        node.through.note(50);
        node.synced.send_replace(50);
        let mut marks = node.through.watch();
        let idle = marks.wait_for(|m| m.lanes.iter().all(|l| l.held == 50));
        tokio::time::timeout(Duration::from_secs(60), idle).await.unwrap().unwrap();
        node.through.set_paused(true);
        node.next = 51;
        node.commit(1, vec![change(ROOT, ChangeKind::Update, row(1, 1, 2))]);
        backend.fail_over(standby);
        node.through.look();
        let read = async || {
            let as_of = node.through.as_of();
            backend.read_instances(&[key(1)], as_of.as_ref()).await
        };
        let mut found = read().await;
        assert!(found.is_err(), "the standby lacks what was confirmed");
        for _ in 0..600 {
            backend.flush_log();
            tokio::time::sleep(Duration::from_millis(100)).await;
            found = read().await;
            if found.is_ok() {
                break;
            }
        }
        let found = found.expect("nothing is believed while the lane has nothing to send");
        assert_eq!(found[0].as_ref().unwrap().tables[ROOT], vec![row(1, 1, 1)]);
        node.stop.cancel();
    });
}

#[test]
fn r11_before_its_claim_a_node_believes_no_backend_that_lacks_what_an_earlier_one_confirmed() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let mut node = Node::start(&backend, options(1, BackendCommit::Sync)).await;
        let standby = backend.standby();
        let upto = node.commit(1, insert(1, 1));
        node.settle(&backend).await;
        node.stop.cancel();
        let (_synced, watching) = watch::channel(0);
        let (resumed, _events) = WriteThrough::start(
            options(1, BackendCommit::Sync),
            Arc::new(backend.clone()),
            Arc::new(schema()),
            watching,
            None,
            0,
            CancellationToken::new(),
        );
        assert!(resumed.as_of().is_none(), "nothing is known of an earlier claim");
        let read = async || {
            let as_of = resumed.as_of();
            backend.read_instances(&[key(1)], as_of.as_ref()).await
        };
        resumed.believe(&[], &[]);
        assert!(read().await.is_err(), "there was one, and nobody knows how far it came");
        resumed.believe(&[upto], &[u64::MAX]);
        assert!(read().await.is_err(), "slots were taken that it does not know of");
        resumed.believe(&[upto], &[]);
        assert!(read().await.unwrap()[0].is_some());
        backend.fail_over(standby);
        assert!(read().await.is_err(), "the standby lacks it");
    });
}

#[test]
fn r09_a_takeover_that_a_failover_lost_is_no_loss_of_slots() {
    run(async {
        let backend = DoubleBackend::new(schema());
        let claim = backend.claim(claim_request(None, "a", 1)).await.unwrap();
        let before = backend.standby();
        let slots = SlotSet::full();
        let takeover = TakeoverRequest {
            group_uid: "g".to_owned(),
            node: "n".to_owned(),
            token: claim.token,
            epoch: 1,
            slots: slots.clone(),
            holding: SlotSet::empty(),
            released: Vec::new(),
        };
        let taken = backend.take_slots(takeover.clone()).await.unwrap();
        let mut node = Node::of(&backend, options(1, BackendCommit::Sync), claim);
        node.through.slots_gained(&slots, &taken.versions);
        node.commit(1, insert(1, 1));
        node.settle(&backend).await;
        backend.fail_over(before);
        node.commit(2, insert(2, 2));
        let mut told = Vec::new();
        while !told.iter().any(|e| matches!(e, FlushEvent::SlotsForgotten { .. })) {
            let event = tokio::time::timeout(Duration::from_secs(60), node.events.recv());
            told.push(event.await.unwrap().unwrap());
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(backend.store().tables[ROOT].is_empty(), "nothing is sent for slots of nobody");
        let as_of = node.through.as_of();
        assert!(backend.read_instances(&[key(1)], as_of.as_ref()).await.is_err());
        let taken = backend.take_slots(takeover).await.unwrap();
        node.through.slots_gained(&slots, &taken.versions);
        told.extend(node.settle(&backend).await);
        assert_eq!(backend.store().tables[ROOT].len(), 2, "sent again, and sent");
        let lost =
            |e: &FlushEvent| matches!(e, FlushEvent::SlotsLost { .. } | FlushEvent::Dropped { .. });
        assert!(!told.iter().any(lost), "{told:?}");
        node.stop.cancel();
    });
}
