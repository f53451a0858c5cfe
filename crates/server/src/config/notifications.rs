//! Telling owners: how repeats are folded.

use redrive_core::{notification::grouping::Folds, time::Span};
use serde::{Deserialize, Serialize};

/// How long nothing more is told of a kind, about one webhook, once something was.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notifications {
    /// For deliveries that died and webhooks that were disabled.
    pub fold: Span,
    /// For circuits.
    pub circuit_fold: Span,
    /// For what lasts: names that are not found, quotas.
    pub remind: Span,
    /// For secrets that are due to be changed.
    pub secret_remind: Span,
}

impl Default for Notifications {
    fn default() -> Self {
        let Folds { usual, circuit, remind, secret } = Folds::default();
        let span = |duration: std::time::Duration| Span::secs(duration.as_secs());
        Self {
            fold: span(usual),
            circuit_fold: span(circuit),
            remind: span(remind),
            secret_remind: span(secret),
        }
    }
}

impl Notifications {
    /// As the engine wants it.
    pub(super) fn folds(&self) -> Folds {
        Folds {
            usual: self.fold.get(),
            circuit: self.circuit_fold.get(),
            remind: self.remind.get(),
            secret: self.secret_remind.get(),
        }
    }

    /// The first that is too short: without folding there would be a storm.
    pub(super) fn too_short(&self) -> Option<&'static str> {
        let all = [
            ("notifications.fold", self.fold),
            ("notifications.circuit_fold", self.circuit_fold),
            ("notifications.remind", self.remind),
            ("notifications.secret_remind", self.secret_remind),
        ];
        all.into_iter().find(|(_, span)| *span < Span::secs(1)).map(|(setting, _)| setting)
    }
}
