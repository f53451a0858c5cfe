//! How causes are folded: the first is told at once, what follows within a while is told together after it.
//!
//! Of each kind about each thing something is standing: what was not told yet, and until when to be quiet.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Cause, Facts, Kind, Notice};
use crate::{
    event::event_type,
    id::{DeliveryId, NoticeId, WebhookId},
    tenancy::TenantId,
    time::Time,
};

impl Kind {
    /// Whether each cause counts. What lasts is only ever told again while it does: a repeat in between says
    /// nothing new, and may be over when its time comes.
    pub fn counts_repeats(self) -> bool {
        match self {
            Self::CircuitOpened | Self::CircuitRecovered | Self::WebhookDisabled | Self::DeliveryDead => true,
            Self::DnsFailing | Self::SecretDue | Self::QuotaReached => false,
        }
    }

    /// What takes it back, or is taken back by it. While both are to be told about one thing, neither is before the
    /// other is due: then both are, what happened last after the other. So the last word is how it stands.
    pub fn counterpart(self) -> Option<Self> {
        match self {
            Self::CircuitOpened => Some(Self::CircuitRecovered),
            Self::CircuitRecovered => Some(Self::CircuitOpened),
            _ => None,
        }
    }
}

/// How long nothing more is told of a kind, about the same thing, once something was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Folds {
    /// For deliveries that died, and webhooks that were disabled.
    pub usual: Duration,
    /// For circuits, either way.
    pub circuit: Duration,
    /// For what lasts: names that are not found, quotas.
    pub remind: Duration,
    /// For secrets that are due to be changed.
    pub secret: Duration,
}

impl Default for Folds {
    fn default() -> Self {
        Self {
            usual: Duration::from_secs(3600),
            circuit: Duration::from_secs(15 * 60),
            remind: Duration::from_secs(24 * 3600),
            secret: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

impl Folds {
    /// The one for a kind.
    pub fn of(&self, kind: Kind) -> Duration {
        match kind {
            Kind::CircuitOpened | Kind::CircuitRecovered => self.circuit,
            Kind::WebhookDisabled | Kind::DeliveryDead => self.usual,
            Kind::DnsFailing | Kind::QuotaReached => self.remind,
            Kind::SecretDue => self.secret,
        }
    }
}

/// What causes are folded by: whose they are, what they are about, what happened.
pub type Key = (TenantId, Option<WebhookId>, Kind);

/// Causes of one kind about one thing, together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folded {
    /// How many.
    pub count: u64,
    /// When the first was.
    pub first_at: Time,
    /// When the last was.
    pub last_at: Time,
    /// What is known of the last.
    pub facts: Facts,
}

impl Folded {
    fn of(cause: &Cause) -> Self {
        let (at, facts) = (cause.at, cause.facts.clone());
        Self { count: u64::from(cause.count), first_at: at, last_at: at, facts }
    }

    fn add(&mut self, kind: Kind, other: Self) {
        self.count = match kind.counts_repeats() {
            true => self.count + other.count,
            false => self.count.max(other.count),
        };
        self.first_at = self.first_at.min(other.first_at);
        if other.last_at >= self.last_at {
            (self.last_at, self.facts) = (other.last_at, other.facts);
        }
    }
}

/// Puts causes together that are of one kind about one thing, in the order of their keys.
pub fn merge<'a>(causes: impl IntoIterator<Item = &'a Cause>) -> BTreeMap<Key, Folded> {
    let mut merged = BTreeMap::<Key, Folded>::new();
    for cause in causes {
        let key = (cause.tenant.clone(), cause.webhook, cause.kind);
        match merged.get_mut(&key) {
            Some(folded) => folded.add(cause.kind, Folded::of(cause)),
            None => drop(merged.insert(key, Folded::of(cause))),
        }
    }
    merged
}

/// What stands of one kind about one thing. Stores keep it in a row, and do the same as this.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// What was not told yet, and when it is to be.
    pub open: Option<(Folded, Time)>,
    /// Until when nothing more is told.
    pub quiet_until: Time,
}

impl Standing {
    /// Adds causes.
    pub fn note(&mut self, kind: Kind, causes: Folded) {
        if !kind.counts_repeats() && causes.last_at < self.quiet_until {
            return;
        }
        match &mut self.open {
            Some((open, _)) => open.add(kind, causes),
            None => {
                let due = causes.first_at.max(self.quiet_until);
                self.open = Some((causes, due));
            }
        }
    }

    /// Takes what is due to be told.
    pub fn close(&mut self, kind: Kind, now: Time, folds: &Folds) -> Option<Folded> {
        let (folded, _) = self.open.take_if(|(_, due)| *due <= now)?;
        self.quiet_until = now + folds.of(kind);
        Some(folded)
    }
}

/// A cause with how many of these dead deliveries it is about, and the last of them; none if there is no such. Deliveries
/// of Redrive's own events do not count.
pub fn died_of(cause: Cause, dead: Vec<(DeliveryId, String)>) -> Option<Cause> {
    let ours = |(_, event_type): &(DeliveryId, String)| !event_type::is_reserved(event_type);
    let dead: Vec<_> = dead.into_iter().filter(ours).collect();
    let count = u32::try_from(dead.len()).unwrap_or(u32::MAX);
    let (delivery, event_type) = dead.into_iter().max()?;
    let facts = Facts { delivery: Some(delivery), event_type: Some(event_type), ..cause.facts };
    Some(Cause { count, facts, ..cause })
}

/// Something that was not told yet.
pub struct Open {
    /// What it is of.
    pub key: Key,
    /// What there is to tell.
    pub folded: Folded,
    /// When it is to be told.
    pub due: Time,
}

/// These, each with its counterpart, in the order in which they are locked.
pub fn with_counterparts(found: Vec<Key>) -> BTreeSet<Key> {
    let counterpart = |(tenant, webhook, kind): &Key| Some((tenant.clone(), *webhook, kind.counterpart()?));
    let others: Vec<_> = found.iter().filter_map(counterpart).collect();
    found.into_iter().chain(others).collect()
}

/// Notices of what is due, and of nothing whose counterpart is not; in the order in which they are to be read.
pub fn to_tell(open: Vec<Open>, now: Time, fresh: Vec<NoticeId>) -> Vec<Notice> {
    let waits: BTreeSet<Key> = open.iter().filter(|one| one.due > now).map(|one| one.key.clone()).collect();
    let is_due = |one: &Open| {
        let (tenant, webhook, kind) = &one.key;
        let counterpart = kind.counterpart().map(|other| (tenant.clone(), *webhook, other));
        one.due <= now && counterpart.is_none_or(|other| !waits.contains(&other))
    };
    let mut due: Vec<_> = open.into_iter().filter(is_due).collect();
    due.sort_by_key(|one| (one.folded.last_at, one.key.2));
    let mut ids = fresh;
    ids.sort_unstable();
    let notice = |(one, id): (Open, NoticeId)| {
        let (tenant, webhook, kind) = one.key;
        let Folded { count, first_at, last_at, facts } = one.folded;
        Notice { id, tenant, webhook, kind, count, first_at, last_at, facts }
    };
    due.into_iter().zip(ids).map(notice).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(secs: u32) -> Time {
        Time::from_secs(secs)
    }

    fn once(secs: u32) -> Folded {
        let facts = Facts { message: Some(secs.to_string()), ..Facts::default() };
        Folded { count: 1, first_at: at(secs), last_at: at(secs), facts }
    }

    fn cause(kind: Kind, secs: u32, count: u32) -> Cause {
        let Folded { facts, .. } = once(secs);
        Cause { tenant: TenantId::default(), webhook: None, kind, at: at(secs), count, facts }
    }

    #[test]
    fn the_first_is_told_at_once_and_what_follows_together() {
        let (mut standing, folds, kind) = (Standing::default(), Folds::default(), Kind::DeliveryDead);
        standing.note(kind, once(1_000));
        assert_eq!(standing.close(kind, at(999), &folds), None, "not before it happened");
        assert_eq!(standing.close(kind, at(1_000), &folds), Some(once(1_000)));
        for secs in 1_001..1_011 {
            standing.note(kind, once(secs));
            assert_eq!(standing.close(kind, at(secs), &folds), None);
        }
        assert_eq!(standing.close(kind, at(4_599), &folds), None);
        let digest = standing.close(kind, at(4_600), &folds).unwrap();
        assert_eq!((digest.count, digest.first_at, digest.last_at), (10, at(1_001), at(1_010)));
        assert_eq!(digest.facts.message.as_deref(), Some("1010"), "of the last");
        assert_eq!(standing.close(kind, at(90_000), &folds), None, "nothing is told of nothing");
        standing.note(kind, once(90_000));
        assert!(standing.close(kind, at(90_000), &folds).is_some(), "after a while it is the first again");
    }

    #[test]
    fn dead_deliveries_are_counted_but_for_those_of_redrives_own_events() {
        let id = |n: u8| DeliveryId::from_bytes([n; 16]);
        let dead =
            vec![(id(2), "order.paid".to_owned()), (id(1), "order.made".into()), (id(3), "redrive.x".into())];
        let counted = died_of(cause(Kind::DeliveryDead, 5, 1), dead).unwrap();
        assert_eq!((counted.count, counted.facts.delivery), (2, Some(id(2))), "the last of them");
        assert_eq!(counted.facts.event_type.as_deref(), Some("order.paid"));
        assert_eq!(died_of(cause(Kind::DeliveryDead, 5, 1), vec![(id(3), "redrive.x".into())]), None);
    }

    #[test]
    fn nothing_is_told_before_its_counterpart_is_due_and_the_last_word_comes_last() {
        let webhook = WebhookId::from_bytes([1; 16]);
        let open = |kind, secs, due| Open {
            key: (TenantId::default(), Some(webhook), kind),
            folded: once(secs),
            due: at(due),
        };
        let ids = || vec![NoticeId::from_bytes([2; 16]), NoticeId::from_bytes([1; 16])];
        let flapping = || vec![open(Kind::CircuitRecovered, 9, 10), open(Kind::CircuitOpened, 8, 20)];
        assert_eq!(to_tell(flapping(), at(19), ids()), []);
        let told = to_tell(flapping(), at(20), ids());
        let told: Vec<_> = told.iter().map(|notice| (notice.kind, notice.id.as_bytes()[0])).collect();
        assert_eq!(told, [(Kind::CircuitOpened, 1), (Kind::CircuitRecovered, 2)]);
        let both = with_counterparts(vec![open(Kind::CircuitOpened, 8, 20).key]);
        assert_eq!(
            both.into_iter().map(|(_, _, kind)| kind).collect::<Vec<_>>(),
            [Kind::CircuitOpened, Kind::CircuitRecovered]
        );
    }

    #[test]
    fn what_lasts_is_told_again_only_while_it_does() {
        let (mut standing, folds, kind) = (Standing::default(), Folds::default(), Kind::SecretDue);
        standing.note(kind, once(0));
        standing.note(kind, once(10));
        assert_eq!(standing.close(kind, at(10), &folds).unwrap().count, 1);
        standing.note(kind, once(7 * 86_400));
        assert_eq!(standing.close(kind, at(100 * 86_400), &folds), None, "it was over by then");
        standing.note(kind, once(7 * 86_400 + 10));
        assert!(standing.close(kind, at(7 * 86_400 + 10), &folds).is_some());
    }

    #[test]
    fn causes_are_merged_by_what_they_are_about() {
        let mut other = cause(Kind::DeliveryDead, 5, 1);
        other.tenant = TenantId::parse("acme").unwrap();
        let causes = [
            cause(Kind::DeliveryDead, 7, 2),
            cause(Kind::DeliveryDead, 3, 4),
            cause(Kind::QuotaReached, 7, 1),
            cause(Kind::QuotaReached, 8, 1),
            other.clone(),
        ];
        let merged = merge(&causes);
        assert_eq!(merged.len(), 3);
        let dead = &merged[&(TenantId::default(), None, Kind::DeliveryDead)];
        assert_eq!((dead.count, dead.first_at, dead.last_at), (6, at(3), at(7)));
        assert_eq!(dead.facts.message.as_deref(), Some("7"));
        assert_eq!(merged[&(TenantId::default(), None, Kind::QuotaReached)].count, 1);
        assert_eq!(merged[&(other.tenant, None, Kind::DeliveryDead)].count, 1);
    }

    /// A circuit's two standings, and what was told of it, as stores do it.
    #[derive(Debug, Default)]
    struct Circuit {
        opened: Standing,
        recovered: Standing,
        told: (u64, u64),
        last_word: Option<Kind>,
    }

    impl Circuit {
        fn look(&mut self, now: u32) {
            let waits = |standing: &Standing| standing.open.as_ref().is_some_and(|(_, due)| *due > at(now));
            if waits(&self.opened) || waits(&self.recovered) {
                return;
            }
            let folds = Folds::default();
            let opened = self.opened.close(Kind::CircuitOpened, at(now), &folds);
            let recovered = self.recovered.close(Kind::CircuitRecovered, at(now), &folds);
            self.told.0 += opened.as_ref().map_or(0, |folded| folded.count);
            self.told.1 += recovered.as_ref().map_or(0, |folded| folded.count);
            let told = [(opened, Kind::CircuitOpened), (recovered, Kind::CircuitRecovered)];
            let last = told.into_iter().filter_map(|(told, kind)| Some((told?.facts.message, kind)));
            // Several moves at the same moment are in the order of their kinds at the worst.
            self.last_word = last
                .max_by_key(|(at, _)| at.as_ref().unwrap().parse::<u32>().unwrap())
                .map_or(self.last_word, |(_, kind)| Some(kind));
        }
    }

    fn any_kind() -> impl Strategy<Value = Kind> {
        prop::sample::select(Kind::ALL.to_vec())
    }

    proptest! {
        #[test]
        fn none_is_lost_and_no_two_are_told_within_a_while(
            kind in any_kind(),
            steps in prop::collection::vec((0..2_000u32, 1..5u32, any::<bool>()), 1..100),
        ) {
            let folds = Folds::default();
            let (mut standing, mut now, mut caused, mut told) = (Standing::default(), 0, 0, Vec::new());
            for (pass, count, look) in steps {
                now += pass;
                standing.note(kind, Folded { count: count.into(), ..once(now) });
                caused += u64::from(count);
                if told.is_empty() {
                    prop_assert!(standing.open.as_ref().unwrap().1 <= at(now), "the first is due at once");
                }
                if look {
                    told.extend(standing.close(kind, at(now), &folds).map(|folded| (now, folded)));
                }
            }
            let end = now + 30 * 86_400;
            told.extend(standing.close(kind, at(end), &folds).map(|folded| (end, folded)));
            for pair in told.windows(2) {
                prop_assert!(at(pair[1].0).since(at(pair[0].0)) >= folds.of(kind));
            }
            if kind.counts_repeats() {
                prop_assert_eq!(told.iter().map(|(_, folded)| folded.count).sum::<u64>(), caused);
            }
            prop_assert_eq!(standing.open, None);
        }

        #[test]
        fn no_recovery_is_told_before_the_opening_that_it_ends(
            moves in prop::collection::vec((1..2_000u32, any::<bool>()), 1..100),
        ) {
            let mut circuit = Circuit::default();
            let (mut now, mut is_open) = (0, false);
            for (pass, looks) in moves {
                now += pass;
                is_open = !is_open;
                match is_open {
                    true => circuit.opened.note(Kind::CircuitOpened, once(now)),
                    false => circuit.recovered.note(Kind::CircuitRecovered, once(now)),
                }
                if looks {
                    circuit.look(now);
                    prop_assert!(circuit.told.1 <= circuit.told.0, "{circuit:?}");
                }
            }
            circuit.look(now + 86_400);
            prop_assert_eq!(circuit.told.0 - circuit.told.1, u64::from(is_open), "in the end, everything was");
            let last_word = if is_open { Kind::CircuitOpened } else { Kind::CircuitRecovered };
            prop_assert_eq!(circuit.last_word, Some(last_word));
        }

        #[test]
        fn noting_at_once_or_one_by_one_is_the_same(
            kind in any_kind(), quiet in 0..100u32,
            causes in prop::collection::vec((0..100u32, 1..5u32), 1..20),
        ) {
            prop_assume!(kind.counts_repeats());
            let mut causes: Vec<_> = causes.into_iter().map(|(secs, count)| cause(kind, secs, count)).collect();
            causes.sort_by_key(|cause| cause.at);
            let mut together = Standing { quiet_until: at(quiet), ..Standing::default() };
            let mut apart = together.clone();
            for folded in merge(&causes).into_values() {
                together.note(kind, folded);
            }
            for cause in &causes {
                apart.note(kind, Folded::of(cause));
            }
            prop_assert_eq!(together, apart);
        }
    }
}
