//! The stable error codes of the API, with their statuses and meanings. `docs/reference/errors.md` is generated from this
//! list; a response can have no other code.

use std::fmt;

/// Defines the codes: name, statuses, meaning in Markdown.
macro_rules! error_codes {
    ($($variant:ident = $name:literal, [$($status:literal),+], $meaning:literal;)+) => {
        /// Stable code of an error response.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ErrorCode {
            $(#[doc = $meaning] $variant,)+
        }

        impl ErrorCode {
            /// All codes, by status.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns the code as in responses.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the HTTP statuses of responses with this code.
            pub(crate) fn statuses(self) -> &'static [u16] {
                match self {
                    $(Self::$variant => &[$($status),+],)+
                }
            }

            /// Returns the meaning, in Markdown.
            #[cfg(test)]
            pub(crate) fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning,)+
                }
            }
        }
    };
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

error_codes! {
    InvalidField = "invalid_field", [400],
        "A field or query parameter has an invalid value, or does not exist; `field` names it.";
    SchemaViolation = "schema_violation", [400],
        "The payload does not match the schema of its event type; `field` is the path of the violation.";
    EventTypeNotRegistered = "event_type_not_registered", [400],
        "The tenant accepts only registered event types: register this one, or publish another.";
    EventTypeArchived = "event_type_archived", [400],
        "The event type is archived: restore it, or publish another.";
    InvalidBody = "invalid_body", [400],
        "The body is JSON, but not an object, or not what this route expects; or there is a body where none is accepted.";
    InvalidJson = "invalid_json", [400],
        "The body is not JSON.";
    InvalidQuery = "invalid_query", [400],
        "The query string has an unknown parameter or a value of the wrong type.";
    IncompleteBody = "incomplete_body", [400],
        "The body ended before its announced length.";
    InvalidForm = "invalid_form", [400, 413, 415, 422],
        "A form of the dashboard cannot be read; reload the page.";
    Unauthorized = "unauthorized", [401],
        "The key is missing, invalid, revoked or expired.";
    Forbidden = "forbidden", [403],
        "The key lacks the scope, or acts for another tenant.";
    NotFound = "not_found", [404],
        "No such object, or it belongs to another tenant.";
    RouteNotFound = "route_not_found", [404],
        "No such route.";
    ApiNotServedHere = "api_not_served_here", [404],
        "This node is a worker; call one with the role `api` or `all`.";
    MethodNotAllowed = "method_not_allowed", [405],
        "The route does not accept this method; see the `Allow` header.";
    BodyTimeout = "body_timeout", [408],
        "The body took longer to arrive than `server.body_timeout`, or arrived too slowly.";
    IdempotencyKeyReused = "idempotency_key_reused", [409],
        "The idempotency key belongs to another event, or to a request with another body; use a new key for a new object.";
    AlreadyRedriven = "already_redriven", [409],
        "The delivery was redriven before; retry its successor.";
    AlreadyDelivered = "already_delivered", [409],
        "The delivery to resend in bulk was delivered; set `include_delivered`, or retry it alone.";
    NotADeadLetter = "not_a_dead_letter", [409],
        "The delivery named in a retry of dead letters is not one: it was delivered, cancelled or purged, or is pending.";
    DeliveryAlreadyEnded = "delivery_already_ended", [409],
        "The delivery to cancel has already ended.";
    PayloadErased = "payload_erased", [409],
        "The payload of the event was erased; there is nothing to resend.";
    DeliveryPending = "delivery_pending", [409],
        "A delivery of the event to replay is still pending; retry or cancel it first.";
    NothingToReplay = "nothing_to_replay", [409],
        "The event went to no webhook; name some.";
    WebhookNotActive = "webhook_not_active", [409],
        "The webhook to test is not `active`; the one to backfill, or to resend to, is disabled, deleted or not verified yet. \
         `detail` names the cause.";
    WebhookDisabled = "webhook_disabled", [409],
        "The webhook to pause or resume is disabled; enable it.";
    WebhookExpired = "webhook_expired", [409],
        "The webhook to enable has expired; set a later `expires_at`.";
    WebhookPaused = "webhook_paused", [409],
        "The webhook to verify is paused; resume it.";
    VerificationTooFrequent = "verification_too_frequent", [409],
        "The last challenge was sent less than half a minute ago.";
    PendingVerification = "pending_verification", [409],
        "The webhook to pause or resume waits for its endpoint's echo.";
    TooManyOperations = "too_many_operations", [409],
        "Eight bulk operations of the tenant are unfinished; wait for one, or cancel it.";
    OperationAlreadyEnded = "operation_already_ended", [409],
        "The bulk operation to pause, resume or cancel has ended, or has queued everything; `detail` names the cause.";
    WebhookExists = "webhook_exists", [409],
        "Another webhook of the tenant has this uid: choose another one, or change that webhook.";
    TenantExists = "tenant_exists", [409],
        "A tenant with this id exists, or existed.";
    DefaultTenantProtected = "default_tenant_protected", [409],
        "The tenant `default` cannot be deleted.";
    EventTypeExists = "event_type_exists", [409],
        "An event type with this name exists.";
    TooManyEventTypes = "too_many_event_types", [409],
        "The tenant has 500 event types; delete one first.";
    CapReached = "cap_reached", [409],
        "The tenant has as many webhooks as the operator's `limits.caps.webhooks_per_tenant` allows.";
    EmailNotConfigured = "email_not_configured", [409],
        "No SMTP server is configured, so no confirmation email can be sent.";
    TooManyPages = "too_many_pages", [409],
        "The session has too many live pages of the dashboard open; close one.";
    QuotaExceeded = "quota_exceeded", [409, 429],
        "409: the tenant has reached its quota of webhooks. 429: it has reached its quota of events for today; `Retry-After` \
         is the time until midnight, UTC.";
    BatchTooCostly = "batch_too_costly", [413],
        "Checking the events of the batch takes too much work; publish this one in a smaller batch.";
    PayloadTooLarge = "payload_too_large", [413],
        "`data` is larger than `events.max_payload_bytes`.";
    BodyTooLarge = "body_too_large", [413],
        "The body is larger than the limit of the route: 64 KiB, 256 KiB for webhooks and event types, 512 KiB for bulk \
         operations, 64 KiB more than a payload where there is one, 16 MiB for a batch.";
    UnsupportedMediaType = "unsupported_media_type", [415],
        "Send `Content-Type: application/json`, or that of CloudEvents where they are accepted.";
    CredentialsRequired = "credentials_required", [422],
        "The new URL has another origin; send `headers` and `auth` again, or remove them.";
    LoopDetected = "loop_detected", [422],
        "The event has passed through more deliveries than `events.max_hops` allows.";
    RateLimited = "rate_limited", [429],
        "This key has exceeded its rate limit.";
    TooManySearches = "too_many_searches", [429],
        "The caller runs a payload search already, or the node runs as many as it may. Wait until one has ended.";
    TooManyExports = "too_many_exports", [429, 503],
        "429: the tenant has reached its limit of concurrent exports. 503: the node has reached its own. Wait until one has \
         ended.";
    InternalError = "internal_error", [500],
        "An internal error of Redrive; the log has the `request_id`. The outcome of the request is unknown.";
    TooManyConnections = "too_many_connections", [503],
        "The client's address has too many requests in progress through a proxy; retry after `Retry-After`.";
    Overloaded = "overloaded", [503],
        "More is being published than can be stored; nothing was stored.";
    Busy = "busy", [503],
        "Another transaction has locked the object to be changed, or too many reads or checks of the tenant are running; \
         nothing was done, send it again.";
    StoreUnavailable = "store_unavailable", [503],
        "The store cannot be written or read, because of a full disk for instance; nothing was acknowledged.";
    QueryTooSlow = "query_too_slow", [503],
        "The query took more than two seconds and was stopped; narrow it.";
    ServiceDown = "service_down", [503],
        "A background service of this node failed and is being restarted (`/readyz`).";
    Draining = "draining", [503],
        "The server is shutting down (`/readyz`).";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::documentation::check_generated;

    /// Returns the table of `docs/reference/errors.md`.
    fn table() -> String {
        let mut text = "| status | `code` | meaning |\n|---|---|---|\n".to_owned();
        for code in ErrorCode::ALL {
            let statuses: Vec<_> = code.statuses().iter().map(u16::to_string).collect();
            text += &format!("| {} | `{code}` | {} |\n", statuses.join(", "), code.meaning());
        }
        text
    }

    #[test]
    fn documentation_lists_every_error_code() {
        check_generated("docs/reference/errors.md", &table());
    }

    #[test]
    fn codes_are_unique_ordered_by_status_and_described_in_sentences() {
        let names: BTreeSet<_> = ErrorCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(names.len(), ErrorCode::ALL.len());
        assert!(ErrorCode::ALL.is_sorted_by_key(|code| code.statuses()[0]));
        for code in ErrorCode::ALL {
            assert!(code.meaning().ends_with('.') && !code.meaning().contains("  "), "{code}");
        }
    }
}
