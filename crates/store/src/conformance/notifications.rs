//! What owners are told: causes with what caused them, folded, and notices that are sent once or again.

use std::{sync::Arc, time::Duration};

use redrive_core::{
    DeadReason, NoticeId, TenantId, Time, WebhookId,
    notification::{
        Cause, Facts, Kind,
        grouping::{Folds, Standing, merge},
    },
    protection::breaker::{CircuitState, SavedCircuit},
    webhook::WebhookState,
};

use super::{Bench, at, closed, page, together};
use crate::{
    Changed, Channel, Disable, Effects, Next, Outcome, PageRequest, Recorded, StoredNotice, Telling, Told,
};

const MINUTE: i64 = 60_000;

fn folds() -> Folds {
    let minute = Duration::from_secs(60);
    Folds { usual: minute, circuit: minute, remind: minute, secret: minute }
}

fn cause(bench: &Bench, kind: Kind, time: i64) -> Cause {
    let facts = Facts { message: Some(format!("at {time} \u{0}\u{1f514}")), ..Facts::default() };
    let webhook = Some(bench.webhook);
    Cause { tenant: bench.tenant.clone(), webhook, kind, at: at(time), count: 1, facts }
}

async fn note(bench: &Bench, causes: &[Cause]) {
    bench.store().note(causes.to_vec()).await.unwrap();
}

/// Makes notices of what is due, and gives all that are to be sent by then.
async fn tell(bench: &Bench, time: i64) -> Vec<StoredNotice> {
    make(bench, time).await;
    bench.store().take_notices(at(time), at(time), 1_000).await.unwrap()
}

async fn make(bench: &Bench, time: i64) -> usize {
    let fresh = (0..200).map(|_| NoticeId::new(at(time), &bench.next())).collect();
    bench.store().make_notices(at(time), folds(), fresh).await.unwrap()
}

/// What is told by then and over with that: kinds, counts and messages.
async fn hear(bench: &Bench, time: i64) -> Vec<(Kind, u64)> {
    let mut heard = Vec::new();
    for told in tell(bench, time).await {
        for channel in [Channel::Event, Channel::Mail] {
            let over = Told::Over(Telling::Told, None);
            bench.store().notice_told(told.notice.id, channel, over).await.unwrap();
        }
        heard.push((told.notice.kind, told.notice.count));
    }
    heard
}

pub async fn the_first_is_told_at_once_and_what_follows_together(bench: &mut Arc<Bench>) {
    assert_eq!(bench.store().next_notice().await.unwrap(), None);
    note(bench, &[cause(bench, Kind::DeliveryDead, 1_000)]).await;
    assert_eq!(bench.store().next_notice().await.unwrap(), Some(at(1_000)));
    assert_eq!(tell(bench, 999).await, []);
    let told = tell(bench, 1_000).await;
    let [one] = &told[..] else { panic!("{told:?}") };
    assert_eq!((one.event, one.mail, one.tries), (Telling::Waiting, Telling::Waiting, 1));
    let notice = one.notice.clone();
    assert_eq!((notice.kind, notice.count, notice.webhook), (Kind::DeliveryDead, 1, Some(bench.webhook)));
    assert_eq!((notice.first_at, notice.last_at), (at(1_000), at(1_000)));
    assert_eq!(notice.facts, cause(bench, Kind::DeliveryDead, 1_000).facts);
    assert_eq!(hear(bench, 1_000).await, [(Kind::DeliveryDead, 1)]);
    for time in 2_000..2_010 {
        note(bench, &[cause(bench, Kind::DeliveryDead, time)]).await;
    }
    Bench::reopen(bench).await;
    assert_eq!(hear(bench, 1_000 + MINUTE - 1).await, []);
    assert_eq!(bench.store().next_notice().await.unwrap(), Some(at(1_000 + MINUTE)));
    let told = tell(bench, 1_000 + MINUTE).await;
    let digest = &told[0].notice;
    assert_eq!((digest.count, digest.first_at, digest.last_at), (10, at(2_000), at(2_009)));
    assert_eq!(digest.facts, cause(bench, Kind::DeliveryDead, 2_009).facts);
}

pub async fn what_stands_is_as_the_rule_says(bench: &Arc<Bench>) {
    let other = bench.new_webhook().await.id;
    let mut standings = std::collections::BTreeMap::<_, Standing>::new();
    let mut random = 7u64;
    let mut roll = |sides: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % sides
    };
    let mut now = 0;
    for _ in 0..150 {
        now += roll(20_000) as i64;
        // Those of circuits wait for one another, which has a case of its own.
        let causes: Vec<_> = (0..roll(4))
            .map(|_| {
                let kind = Kind::ALL[2 + roll(5) as usize];
                let time = (now - roll(100) as i64).max(0);
                let webhook = [Some(bench.webhook), Some(other), None][roll(3) as usize];
                Cause { webhook, count: 1 + roll(3) as u32, ..cause(bench, kind, time) }
            })
            .collect();
        for (key, folded) in merge(&causes) {
            standings.entry(key.clone()).or_default().note(key.2, folded);
        }
        note(bench, &causes).await;
        if roll(2) == 0 {
            let mut expected = Vec::new();
            for ((_, webhook, kind), standing) in &mut standings {
                let folded = standing.close(*kind, at(now), &folds());
                expected.extend(folded.map(|folded| (*kind, *webhook, folded.count, folded.facts)));
            }
            let mut told: Vec<_> = Vec::new();
            for stored in tell(bench, now).await {
                let notice = stored.notice;
                for channel in [Channel::Event, Channel::Mail] {
                    let over = Told::Over(Telling::Told, None);
                    bench.store().notice_told(notice.id, channel, over).await.unwrap();
                }
                told.push((notice.kind, notice.webhook, notice.count, notice.facts));
            }
            let key = |told: &(Kind, Option<WebhookId>, u64, Facts)| (told.0, told.1);
            expected.sort_by_key(key);
            told.sort_by_key(key);
            assert_eq!(told, expected, "at {now}");
        }
    }
}

pub async fn what_lasts_is_told_again_only_while_it_does(bench: &Arc<Bench>) {
    let quota = |time| Cause { webhook: None, ..cause(bench, Kind::QuotaReached, time) };
    note(bench, &[quota(0), quota(5)]).await;
    assert_eq!(hear(bench, 10).await, [(Kind::QuotaReached, 1)]);
    note(bench, &[quota(20)]).await;
    assert_eq!(hear(bench, 10 * MINUTE).await, []);
    note(bench, &[quota(10 * MINUTE)]).await;
    assert_eq!(hear(bench, 10 * MINUTE).await, [(Kind::QuotaReached, 1)]);
}

pub async fn a_notice_is_taken_by_one_and_again_when_it_is_not_heard_of(bench: &Arc<Bench>) {
    note(bench, &[cause(bench, Kind::DeliveryDead, 0)]).await;
    assert_eq!(make(bench, 0).await, 1);
    let store = bench.store();
    let taken = store.take_notices(at(0), at(100), 10).await.unwrap();
    let id = taken[0].notice.id;
    assert_eq!(store.take_notices(at(99), at(300), 10).await.unwrap(), []);
    assert_eq!(store.next_notice().await.unwrap(), Some(at(100)));
    let again = store.take_notices(at(100), at(300), 10).await.unwrap();
    assert_eq!((again[0].notice.id, again[0].tries), (id, 2));
    store.notice_told(id, Channel::Event, Told::Over(Telling::Told, None)).await.unwrap();
    let later = Told::Later(at(150), "no route".into());
    store.notice_told(id, Channel::Mail, later).await.unwrap();
    let again = store.take_notices(at(150), at(300), 10).await.unwrap();
    assert_eq!((again[0].event, again[0].mail), (Telling::Told, Telling::Waiting));
    assert_eq!(again[0].error.as_deref(), Some("no route"));
    store.notice_told(id, Channel::Mail, Told::Over(Telling::GivenUp, Some("gone".into()))).await.unwrap();
    // What is over stays so, whoever comes late.
    store.notice_told(id, Channel::Mail, Told::Later(at(200), "late".into())).await.unwrap();
    assert_eq!(store.take_notices(at(10_000), at(10_001), 10).await.unwrap(), []);
    assert_eq!(store.next_notice().await.unwrap(), None);
    let listed = store.list_notices(bench.tenant.clone(), page(10)).await.unwrap();
    assert_eq!((listed[0].event, listed[0].mail, listed[0].next_at), (Telling::Told, Telling::GivenUp, None));
    assert_eq!(listed[0].error.as_deref(), Some("gone"));
}

pub async fn many_makers_and_takers_get_each_notice_once(bench: &Arc<Bench>) {
    for _ in 0..40 {
        let webhook = Some(bench.webhook_id());
        note(bench, &[Cause { webhook, ..cause(bench, Kind::DeliveryDead, 0) }]).await;
    }
    let work = |_: usize| {
        let bench = bench.clone();
        async move {
            make(&bench, 10).await;
            bench.store().take_notices(at(10), at(1_000), 1_000).await.unwrap()
        }
    };
    let mut taken: Vec<_> = together((0..8).map(work)).await.into_iter().flatten().collect();
    taken.extend(bench.store().take_notices(at(10), at(1_000), 1_000).await.unwrap());
    let mut webhooks: Vec<_> = taken.iter().map(|taken| taken.notice.webhook).collect();
    webhooks.sort_unstable();
    webhooks.dedup();
    assert_eq!((taken.len(), webhooks.len()), (40, 40));
}

pub async fn notices_are_listed_by_tenant_newest_first_and_forgotten_when_old(bench: &Arc<Bench>) {
    let other = bench.new_tenant("globex").await;
    for time in 0..4 {
        let webhook = Some(bench.webhook_id());
        note(bench, &[Cause { webhook, ..cause(bench, Kind::DeliveryDead, time) }]).await;
        hear(bench, time).await;
    }
    let theirs = Cause { tenant: other.clone(), webhook: None, ..cause(bench, Kind::QuotaReached, 4) };
    note(bench, &[theirs]).await;
    assert_eq!(tell(bench, 4).await.len(), 1);
    let list = |tenant: &TenantId, after, limit| {
        bench.store().list_notices(tenant.clone(), PageRequest { after, offset: 0, limit })
    };
    let all = list(&bench.tenant, None, 100).await.unwrap();
    let times: Vec<_> = all.iter().map(|stored| stored.notice.first_at).collect();
    assert_eq!(times, [at(3), at(2), at(1), at(0)]);
    assert_eq!(list(&bench.tenant, Some(all[1].notice.id), 1).await.unwrap(), [all[2].clone()]);
    assert_eq!(list(&other, None, 100).await.unwrap().len(), 1);
    // What is not over yet stays, however old it is.
    let old = at(10 * MINUTE);
    assert_eq!(bench.store().forget_notices(old, 3).await.unwrap(), 3);
    bench.store().forget_notices(old, 3).await.unwrap();
    assert_eq!(bench.store().forget_notices(old, 3).await.unwrap(), 0);
    assert_eq!(list(&bench.tenant, None, 100).await.unwrap(), []);
    assert_eq!(list(&other, None, 100).await.unwrap().len(), 1);
}

fn moved(state: CircuitState, generation: u64, time: i64) -> SavedCircuit {
    let until = (state == CircuitState::Open).then(|| at(time + 1_000));
    SavedCircuit { state, generation, since: at(time), until, ..closed() }
}

pub async fn a_circuit_is_told_of_by_the_move_that_is_stored(bench: &Arc<Bench>) {
    let (tenant, webhook) = (bench.tenant.clone(), bench.webhook);
    let set = |state, generation, time, kind| {
        let cause = cause(bench, kind, time);
        bench.store().set_circuit(tenant.clone(), webhook, moved(state, generation, time), Some(cause))
    };
    set(CircuitState::Open, 5, 10, Kind::CircuitOpened).await.unwrap();
    // Stored once more, by whoever was not answered; and by another node that found out later.
    set(CircuitState::Open, 5, 10, Kind::CircuitOpened).await.unwrap();
    set(CircuitState::Open, 4, 11, Kind::CircuitOpened).await.unwrap();
    assert_eq!(hear(bench, 20).await, [(Kind::CircuitOpened, 1)]);
    set(CircuitState::HalfOpen, 6, 30, Kind::CircuitRecovered).await.unwrap();
    set(CircuitState::Open, 7, 40, Kind::CircuitOpened).await.unwrap();
    assert_eq!(hear(bench, 50).await, [], "another failed recovery is nothing new");
    set(CircuitState::Closed, 8, 60, Kind::CircuitRecovered).await.unwrap();
    set(CircuitState::Closed, 8, 60, Kind::CircuitRecovered).await.unwrap();
    assert_eq!(hear(bench, 70).await, [(Kind::CircuitRecovered, 1)]);
}

pub async fn flapping_is_told_together_and_ends_with_how_it_stands(bench: &Arc<Bench>) {
    let opened = |time| cause(bench, Kind::CircuitOpened, time);
    let recovered = |time| cause(bench, Kind::CircuitRecovered, time);
    note(bench, &[opened(0)]).await;
    assert_eq!(hear(bench, 0).await, [(Kind::CircuitOpened, 1)]);
    note(bench, &[recovered(1_000)]).await;
    assert_eq!(hear(bench, 1_000).await, [(Kind::CircuitRecovered, 1)]);
    note(bench, &[opened(2_000)]).await;
    note(bench, &[recovered(3_000)]).await;
    note(bench, &[opened(4_000)]).await;
    note(bench, &[recovered(5_000)]).await;
    assert_eq!(hear(bench, MINUTE).await, [], "the recovery is not due yet");
    let told = hear(bench, 1_000 + MINUTE).await;
    assert_eq!(told, [(Kind::CircuitOpened, 2), (Kind::CircuitRecovered, 2)]);
    let later = 10 * MINUTE;
    note(bench, &[recovered(later), opened(later + 1)]).await;
    let told = hear(bench, later + 1).await;
    assert_eq!(
        told,
        [(Kind::CircuitRecovered, 1), (Kind::CircuitOpened, 1)],
        "the last word is how it stands"
    );
}

fn dead() -> Next {
    Next::Dead { reason: DeadReason::Permanent }
}

pub async fn an_outcome_tells_what_took_place_with_it(bench: &Arc<Bench>) {
    let causes = || {
        [Kind::DeliveryDead, Kind::CircuitOpened, Kind::WebhookDisabled]
            .map(|kind| cause(bench, kind, 5))
            .to_vec()
    };
    // A retry: nothing of it took place.
    let retried = bench.leased(at(1)).await;
    let next = Next::Retry { due: at(100) };
    bench.record(Outcome { causes: causes(), ..bench.outcome(retried, 1, next, at(5)) }).await;
    // Nor anything of what somebody says who has no lease.
    let epoch = bench.new_epoch().await;
    let fenced = Outcome { epoch, causes: causes(), ..bench.outcome(retried, 2, dead(), at(5)) };
    assert_eq!(bench.record(fenced).await, Recorded::Fenced);
    assert_eq!(hear(bench, 10).await, []);
    let id = bench.leased(at(2)).await;
    let url = bench.stored_webhook(bench.webhook).await.webhook.spec.url;
    let effects = Effects { circuit: Some(Box::new(moved(CircuitState::Open, 5, 5))), ..Effects::default() };
    let outcome = Outcome {
        causes: causes(),
        effects,
        disable: Some(Disable { reason: "gone".into(), url }),
        ..bench.outcome(id, 1, dead(), at(5))
    };
    assert!(matches!(bench.record(outcome.clone()).await, Recorded::Done { .. }));
    // A resend tells nothing more.
    assert_eq!(bench.record(outcome).await, Recorded::Again);
    let told = hear(bench, 10).await;
    assert_eq!(told, [(Kind::CircuitOpened, 1), (Kind::WebhookDisabled, 1), (Kind::DeliveryDead, 1)]);
    bench.leave_undrained();
}

pub async fn many_deaths_at_once_are_one_row(bench: &Arc<Bench>) {
    let mut answers = Vec::new();
    for time in 0..300 {
        let id = bench.leased(at(time)).await;
        let causes = vec![cause(bench, Kind::DeliveryDead, time)];
        answers.push(bench.submit_outcome(Outcome { causes, ..bench.outcome(id, 1, dead(), at(time)) }));
    }
    for answer in answers {
        answer.await.unwrap().unwrap();
    }
    assert_eq!(hear(bench, 1_000).await, [(Kind::DeliveryDead, 300)]);
}

pub async fn what_expires_is_told_with_its_number(bench: &Arc<Bench>) {
    let mut last = None;
    for time in 0..5 {
        last = Some(bench.waiting(at(time), at(1_000)).await);
    }
    let expired = Cause { count: 1, facts: Facts::default(), ..cause(bench, Kind::DeliveryDead, 60) };
    bench.store().expire(bench.webhook, at(50), at(60), 10, Some(expired.clone())).await.unwrap();
    let told = tell(bench, 100).await;
    let notice = &told[0].notice;
    assert_eq!((told.len(), notice.count, notice.facts.delivery), (1, 5, last));
    assert!(notice.facts.event_type.is_some());
    // Nothing expired, nothing to tell.
    bench.store().expire(bench.webhook, at(50), at(60), 10, Some(expired)).await.unwrap();
    assert_eq!(make(bench, 10 * MINUTE).await, 0);
}

pub async fn a_change_that_is_refused_tells_nothing(bench: &Arc<Bench>) {
    let found = bench.stored_webhook(bench.webhook).await;
    let mut webhook = found.webhook;
    webhook.state = WebhookState::Disabled("expired".into());
    let cause = cause(bench, Kind::WebhookDisabled, 5);
    let stale = bench.store().change_webhook(webhook.clone(), found.revision - 1, Some(cause.clone()));
    assert_eq!(stale.await.unwrap(), Changed::Stale);
    assert_eq!(hear(bench, 10).await, []);
    let changed = bench.store().change_webhook(webhook, found.revision, Some(cause)).await.unwrap();
    assert!(matches!(changed, Changed::Done { .. }));
    assert_eq!(hear(bench, 10).await, [(Kind::WebhookDisabled, 1)]);
}

pub async fn a_tenant_that_is_gone_is_told_nothing_more(bench: &Arc<Bench>) {
    let other = bench.new_tenant("globex").await;
    let theirs = Cause { tenant: other.clone(), webhook: None, ..cause(bench, Kind::QuotaReached, 4) };
    note(bench, &[theirs]).await;
    bench.store().delete_tenant(other, at(5)).await.unwrap();
    assert_eq!(hear(bench, 10).await, []);
    assert_eq!(bench.store().next_notice().await.unwrap(), None::<Time>);
}
