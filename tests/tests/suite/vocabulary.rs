//! Vocabulary test: sources, pages and documents use the words of `docs/glossary.md`. A word that was replaced must not
//! come back; the list of places that still have one may only shrink.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Identifiers that were replaced, as whole words, and what is used instead.
const IDENTIFIERS: &[(&str, &str)] = &[
    ("Hook", "ResolvedWebhook, or Webhook"),
    ("Tried", "AttemptResult"),
    ("Whom", "WebhookLimits"),
    ("Says", "LocalDecision"),
    ("Desk", "the thing itself: WriterLoop, PublishChannel, PendingOps"),
    ("Office", "TicketBroker"),
    ("Standing", "GroupState, TypeStatus or BlockSnapshot"),
    ("Birth", "InitialState"),
    ("Learnt", "RuntimeChange"),
    ("Told", "ChannelResult, or what is reported"),
    ("Fate", "an outcome label"),
    ("Figures", "Statistics or Metrics"),
    ("PATIENCE", "a …_TIMEOUT"),
    ("MOST", "a MAX_… with its quantity"),
    ("LONGEST", "a MAX_… with its quantity"),
    ("LEAST", "a MIN_… with its quantity"),
    ("LOOK", "a …_INTERVAL"),
    ("REST", "an …_INTERVAL or …_FACTOR"),
    ("GOODBYE", "a …_TIMEOUT"),
    ("BREATH", "a MIN_…_INTERVAL"),
    ("LAST_WORDS", "a …_FLUSH_TIMEOUT"),
    ("carry_out", "apply_actions, or run"),
    ("take_in", "enqueue_…"),
    ("tell_all", "report_attempt"),
    ("foresee", "preview_transition"),
    ("call_off", "cancel"),
    ("hand_back", "release"),
    ("give_back", "release"),
    ("keep_house", "run_maintenance"),
    ("homes", "assignments"),
    ("hook", "webhook"),
    ("patience", "timeout"),
    ("held_by", "claimed_by"),
    ("hold_until", "paused_until, or claimed_until"),
    ("sender_deaths", "crash_count"),
    ("SenderDied", "SendFailure::Crashed"),
    ("RescueCounts", "ReleaseCounts"),
    ("release_panicked", "release_crashed"),
    ("release_with_death", "release_as_crashed"),
    ("Deliverer", "AttemptRunner"),
    ("deliver_admitted", "start_admitted"),
    ("PublishOrder", "PublishSequence"),
    ("OrderedPosition", "SequencePosition"),
    ("OutOfOrder", "PrecedingEventFailed"),
    ("OfferedEvent", "SubmittedEvent"),
    ("OpenEvent", "UnpublishedEvent"),
    ("WeightedScheduler", "ClassScheduler"),
    ("tenants_at_share", "tenants_at_fair_limit"),
    ("blocked_refills", "refills_without_capacity"),
    ("probe_limit", "half_open_max_in_memory"),
    ("still_waits", "is_retry, or returns_to_store"),
    ("run_counted", "run_work, or run_batch_work"),
    ("settle_operation", "collect_operation_results"),
    ("close_operation", "complete_operation"),
    ("due_webhooks", "webhooks_with_due_action"),
    ("sealing_keys", "encryption_keys"),
    ("MailAddress", "EmailAddress"),
    ("MailReservation", "EmailReservation"),
    ("read_notice", "read_notification"),
    ("CLAIM_GRACE", "TICKET_CLAIM_TIMEOUT"),
    ("coordinated_share", "share_unless_redis_counts"),
];

/// Phrases that were replaced, in any case, and how to say it instead.
const PHRASES: &[(&str, &str)] = &[
    ("fn of(", "new, from_…, for_… or a noun"),
    ("whoever", "name the actor"),
    ("as it were", "leave it out"),
    ("nobody's", "name the actor"),
    ("none of its business", "say what is not selected"),
    ("anew", "again, or re-…"),
    (" lest ", "so that … not"),
    ("in its stead", "instead"),
    ("called off", "cancelled"),
    ("given up on", "marked dead"),
    ("under way", "in flight, or in progress"),
    ("held back", "held, or blocked"),
    ("no longer receives events", "is disabled or deleted"),
    ("unsettled request", "unsettled deliveries"),
    ("runtime thread", "Tokio worker thread"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Adds the files below `folder` that people read, without what was built or installed.
fn add_files(folder: &Path, found: &mut Vec<PathBuf>) {
    const KINDS: [&str; 8] = ["rs", "md", "html", "sql", "lua", "js", "txt", "toml"];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !["target", "node_modules", "vendor", "corpus"].contains(&name.as_str()) {
            add_files(&path, found);
        } else if path.extension().is_some_and(|kind| KINDS.iter().any(|known| kind == *known))
            && !name.starts_with("vocabulary")
        {
            found.push(path);
        }
    }
}

fn has_word(text: &str, word: &str) -> bool {
    let apart = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    text.match_indices(word)
        .any(|(at, _)| apart(text[..at].chars().next_back()) && apart(text[at + word.len()..].chars().next()))
}

/// Returns the replaced words of a file with their replacements.
fn replaced_words(text: &str) -> Vec<(&'static str, &'static str)> {
    let lower = text.to_lowercase();
    let identifiers = IDENTIFIERS.iter().filter(|(word, _)| has_word(text, word));
    identifiers.chain(PHRASES.iter().filter(|(phrase, _)| lower.contains(phrase))).copied().collect()
}

#[test]
fn replaced_words_are_found_as_whole_words_and_phrases() {
    let words = |text| replaced_words(text).into_iter().map(|(word, _)| word).collect::<Vec<_>>();
    assert_eq!(words("struct Hook;"), ["Hook"]);
    assert_eq!(words("webhook: ResolvedWebhook, UNPATIENCE, Hooked"), [] as [&str; 0]);
    assert_eq!(words("Whoever it is"), ["whoever"]);
}

#[test]
fn sources_and_documents_use_the_glossary() {
    let mut files = Vec::new();
    for folder in ["crates", "tests", "bench", "fuzz", "docs"] {
        add_files(&root().join(folder), &mut files);
    }
    files.extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root().join(name)));
    let mut found = BTreeSet::new();
    let mut new = Vec::new();
    let allowed: BTreeSet<String> =
        include_str!("vocabulary_allowed.txt").lines().map(str::to_owned).collect();
    for path in files {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        for (word, instead) in replaced_words(&std::fs::read_to_string(&path).unwrap()) {
            let hit = format!("{name}: {word}");
            if !allowed.contains(&hit) {
                new.push(format!("{hit} (use {instead})"));
            }
            found.insert(hit);
        }
    }
    assert_eq!(new, [] as [String; 0], "see docs/glossary.md");
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert_eq!(gone, [] as [&String; 0], "delete these lines of vocabulary_allowed.txt: the words are gone");
}
