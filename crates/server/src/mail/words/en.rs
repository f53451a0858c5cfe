//! English.

use super::{Counted, KindWords, PageWords, Words};

pub(super) const WORDS: Words = Words {
    circuit_opened: KindWords {
        name: "requests on hold because too many failed",
        subject: Counted {
            one: "Requests to {webhook} are on hold",
            many: "Requests to {webhook} were put on hold {count} times",
        },
        happened: Counted {
            one: "Too many requests to {webhook} failed, so Redrive stopped sending to it at {last}. Events for it wait, and none is lost.",
            many: "Too many requests to {webhook} failed, so Redrive stopped sending to it {count} times between {first} and {last}. Events for it wait, and none is lost.",
        },
        next: "Look at the errors and repair the endpoint. Redrive tries again by itself, and sends what waits as soon as that works.",
    },
    circuit_recovered: KindWords {
        name: "requests that work again",
        subject: Counted { one: "{webhook} works again", many: "{webhook} recovered {count} times" },
        happened: Counted {
            one: "Requests to {webhook} succeed again since {last}. What waited for it is being sent.",
            many: "Requests to {webhook} began to succeed again {count} times between {first} and {last}. What waited for it is being sent.",
        },
        next: "Nothing has to be done. If this comes often, the endpoint may be too slow or have too little room.",
    },
    webhook_disabled: KindWords {
        name: "webhooks that were disabled",
        subject: Counted { one: "{webhook} was disabled", many: "{webhook} was disabled {count} times" },
        happened: Counted {
            one: "Redrive disabled {webhook} at {last}. No more events are sent to it, and what waited for it was cancelled.",
            many: "Redrive disabled {webhook} {count} times, first at {first} and last at {last}. No more events are sent to it, and what waited for it was cancelled.",
        },
        next: "Repair the endpoint or correct its URL, enable the webhook again, and replay the events that it missed.",
    },
    delivery_dead: KindWords {
        name: "deliveries that were given up",
        subject: Counted {
            one: "A delivery to {webhook} was given up",
            many: "{count} deliveries to {webhook} were given up",
        },
        happened: Counted {
            one: "A delivery to {webhook} died at {last}: it is not tried again by itself, and kept among the dead letters.",
            many: "{count} deliveries to {webhook} died between {first} and {last}: they are not tried again by themselves, and kept among the dead letters.",
        },
        next: "Find out why the endpoint did not take them, repair it, and retry the dead letters before they are forgotten.",
    },
    dns_failing: KindWords {
        name: "host names that cannot be looked up",
        subject: Counted {
            one: "The host name of {webhook} cannot be looked up",
            many: "The host name of {webhook} could not be looked up {count} times",
        },
        happened: Counted {
            one: "For most attempts of the last minutes before {last}, the host name of {webhook} could not be looked up.",
            many: "{count} times between {first} and {last}, the host name of {webhook} could not be looked up for most attempts of some minutes.",
        },
        next: "Check the spelling of the URL, and that its host name is in the DNS and its name servers answer.",
    },
    secret_due: KindWords {
        name: "secrets that should be changed",
        subject: Counted {
            one: "The secret of {webhook} should be changed",
            many: "The secret of {webhook} should be changed ({count} reminders)",
        },
        happened: Counted {
            one: "The secret that signs requests to {webhook} is old. This was noticed at {last}.",
            many: "The secret that signs requests to {webhook} is old. This was noticed {count} times between {first} and {last}.",
        },
        next: "Rotate the secret. The old one goes on signing for a while, so that the endpoint can be changed in peace.",
    },
    quota_reached: KindWords {
        name: "quotas that are used up",
        subject: Counted {
            one: "A quota of {tenant} is used up",
            many: "A quota of {tenant} is used up: {count} refusals",
        },
        happened: Counted {
            one: "Something was refused to {tenant} at {last}, because a quota is used up.",
            many: "Something was refused to {tenant} {count} times between {first} and {last}, because a quota is used up.",
        },
        next: "Make room, such as by deleting webhooks that nobody needs, or wait until the day is over; then try again what was refused. Or ask the operator for a larger quota.",
    },
    reasons: &[
        ("permanent", "the endpoint refused it for good"),
        ("exhausted", "every attempt failed"),
        ("tls_limit", "no secure connection could be made"),
        ("blocked_address", "the address may not be called"),
        ("expired", "its time was over"),
        ("dns", "the host name could not be looked up"),
        ("gone", "the endpoint answered 410 Gone"),
        ("failing", "every request has failed for too long"),
        ("not_verified", "the endpoint did not echo the challenge"),
        ("age", "it is older than it should be"),
        ("max_events_per_day", "no more events may be published today"),
        ("max_webhooks", "no more webhooks may be made"),
    ],
    thousands: ',',
    webhook: "Webhook",
    tenant: "Tenant",
    reason: "Reason",
    details: "Details",
    event_type: "Event type of the last",
    delivery: "Delivery, the last",
    when: "When",
    how_often: "How often",
    first: "First",
    last: "Last",
    until: "Tried again at",
    what_to_do: "What to do",
    open: "Open it in the dashboard",
    why_you: "You get this because {address} is to be told about {tenant}. It was sent by a program; answers are not read.",
    unsubscribe: "No more mails about {kind}",
    ask: "To get no more mails about {kind}, ask whoever looks after {tenant} to mute them.",
    page: PageWords {
        title: "No more mails?",
        question: "Shall {address} get no more mails from {tenant} about {kind}? Mails about other things go on.",
        button: "No more mails about this",
        done_title: "Done",
        done: "{address} gets no more mails from {tenant} about {kind}.",
        back: "Whoever looks after {tenant} can turn them on again.",
        bad_title: "This link does not work",
        bad: "It may be cut off, or the installation has got new keys since. Ask whoever looks after your webhooks to mute the mails, or use the link in a newer one.",
    },
};
