//! Wake-ups of the background services: each wakes one of them, however often it is called.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use parking_lot::RwLock;
use redrive_core::Time;
use tokio::sync::Notify;

/// Wakes the background services of a node.
#[derive(Default)]
pub(crate) struct Wakeups {
    /// The claim loop: deliveries may be due, or there is capacity again.
    pub(crate) claims: TimedWakeup,
    /// Ends of blocks: a block may end sooner than planned.
    pub(crate) gate_timer: Notify,
    /// Expiry: a webhook may expire sooner than planned.
    pub(crate) expiry: Notify,
    /// Cancellation of waiting deliveries of inactive webhooks.
    pub(crate) cancellation: Notify,
    /// Bulk operations: one may be claimed.
    pub(crate) operations: Notify,
    /// Notifications: there may be something to send.
    pub(crate) notifier: Notify,
    /// Confirmation emails: one may be due.
    pub(crate) confirmations: Notify,
    /// Outcomes that the store did not accept.
    pub(crate) outcome_retry: Notify,
    /// The change feed.
    pub(crate) changes: ChangeSignal,
}

/// Wakes a service immediately, or at a time earlier than its current deadline.
pub(crate) struct TimedWakeup {
    /// Deadline in milliseconds.
    deadline_ms: AtomicI64,
    notify: Notify,
}

impl Default for TimedWakeup {
    fn default() -> Self {
        Self { deadline_ms: AtomicI64::new(i64::MAX), notify: Notify::new() }
    }
}

impl TimedWakeup {
    /// Wakes the service now.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Wakes the service no later than `at`.
    pub(crate) fn wake_at(&self, at: Time) {
        if self.deadline_ms.fetch_min(at.millis(), Relaxed) > at.millis() {
            self.notify.notify_one();
        }
    }

    /// Lowers the deadline to `at` without waking the service. Returns the deadline; `None` if there is none.
    pub(crate) fn lower_deadline(&self, at: Option<Time>) -> Option<Time> {
        let at = at.map_or(i64::MAX, Time::millis);
        let earliest = self.deadline_ms.fetch_min(at, Relaxed).min(at);
        (earliest < i64::MAX).then(|| Time::from_millis(earliest))
    }

    /// Waits until the service is woken.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Resets a deadline that has passed. Work announced afterwards must be found by the pass that follows.
    pub(crate) fn reset_if_passed(&self, now: Time) {
        if self.deadline_ms.load(Relaxed) <= now.millis() {
            self.deadline_ms.store(i64::MAX, Relaxed);
        }
    }
}

/// Signals to the change feed, and the callbacks for changed API keys.
#[derive(Default)]
pub(crate) struct ChangeSignal {
    /// Wakes the service because there may be changes to read.
    wakeup: Notify,
    /// Changes may have been missed: resync.
    resync_requested: AtomicBool,
    /// Cached state may come from another database server, whose versions are not comparable with those of this one.
    is_foreign: AtomicBool,
    on_keys_changed: RwLock<Vec<Box<dyn Fn() + Send + Sync>>>,
}

impl ChangeSignal {
    /// Triggers a poll of the change feed now.
    pub(crate) fn notify(&self) {
        self.wakeup.notify_one();
    }

    /// Triggers a full resync.
    pub(crate) fn request_resync(&self) {
        self.resync_requested.store(true, Relaxed);
        self.wakeup.notify_one();
    }

    /// Triggers a full resync that ignores cached versions.
    pub(crate) fn server_changed(&self) {
        self.is_foreign.store(true, Relaxed);
        self.request_resync();
    }

    /// Waits for a signal.
    pub(crate) async fn notified(&self) {
        self.wakeup.notified().await;
    }

    /// Returns whether a resync was requested, and resets the request.
    pub(crate) fn take_resync_request(&self) -> bool {
        self.resync_requested.swap(false, Relaxed)
    }

    /// Requests a resync again after one has failed, without waking the service.
    pub(crate) fn restore_resync_request(&self, was_requested: bool) {
        self.resync_requested.fetch_or(was_requested, Relaxed);
    }

    /// Returns whether cached versions must be ignored, and resets that.
    pub(crate) fn take_foreign(&self) -> bool {
        self.is_foreign.swap(false, Relaxed)
    }

    /// Makes the next resync ignore cached versions again after one has failed.
    pub(crate) fn restore_foreign(&self, is_foreign: bool) {
        self.is_foreign.fetch_or(is_foreign, Relaxed);
    }

    /// Registers a callback for changed API keys. It must not block.
    pub(crate) fn on_keys_changed(&self, call: Box<dyn Fn() + Send + Sync>) {
        self.on_keys_changed.write().push(call);
    }

    /// Calls the callbacks for changed API keys.
    pub(crate) fn keys_changed(&self) {
        self.on_keys_changed.read().iter().for_each(|call| call());
    }
}
