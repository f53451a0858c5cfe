//! The clock: what time it is, and an operator's confirmation after a jump.

use redrive_core::Time;
use serde_json::json;

use super::{
    App, AppError,
    audit::{Actor, Deed, Traces},
};

/// The clock, as this node sees it.
#[derive(Clone, Copy, Debug)]
pub struct ClockStatus {
    /// The time by which deliveries are scheduled.
    pub now: Time,
    /// The time by which deliveries expire and old data is deleted.
    pub confirmed_now: Time,
    /// By how many milliseconds the clock differs from its prediction, if it does.
    pub unconfirmed_jump_ms: Option<i64>,
}

impl App {
    /// What time it is.
    pub fn clock_status(&self) -> ClockStatus {
        let clock = self.engine.clock();
        ClockStatus {
            now: clock.now(),
            confirmed_now: clock.confirmed_now(),
            unconfirmed_jump_ms: clock.unconfirmed_jump_ms(),
        }
    }

    /// Confirms the time that the clock shows, for all nodes.
    pub async fn confirm_clock(&self, by: &Actor) -> Result<ClockStatus, AppError> {
        let deed = Deed { action: "clock.confirm", tenant: None, object: None };
        self.audited(by, deed, async {
            let shown = |status: &ClockStatus| {
                Some(json!({
                    "now": status.now, "confirmed_now": status.confirmed_now,
                    "unconfirmed_jump_ms": status.unconfirmed_jump_ms,
                }))
            };
            let before = shown(&self.clock_status());
            self.engine.confirm_clock().await?;
            let status = self.clock_status();
            Ok((status, Traces { object: None, before, after: shown(&status) }))
        })
        .await
    }
}
