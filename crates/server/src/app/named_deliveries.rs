//! Deliveries that a bulk operation names by id: which of them it takes, and why it refuses the others.

use std::collections::{HashMap, HashSet};

use redrive_core::{
    DeliveryId, DeliveryStatus, FieldError, WebhookId,
    delivery::bulk_operation::{Candidate, MAX_DELIVERY_IDS, OperationKind, OperationTarget},
    webhook::WebhookState,
};
use redrive_store::OperationRequest;

use super::{App, AppError, ErrorCode, TenantView, webhooks::check_receiving};

/// A delivery that a request names.
#[derive(Debug)]
pub struct NamedDelivery {
    /// The id as it was given.
    pub text: String,
    /// The id, or why the operation does not take the delivery.
    pub result: Result<DeliveryId, AppError>,
}

impl App {
    /// Checks the deliveries that a request names, each once, and makes the order select those that it can take.
    pub async fn select_named(
        &self,
        view: &TenantView,
        order: &mut OperationRequest,
        texts: Vec<String>,
    ) -> Result<Vec<NamedDelivery>, AppError> {
        let mut named = parse_ids(texts)?;
        let ids: Vec<_> = named.iter().filter_map(|one| one.result.clone().ok()).collect();
        let found: HashMap<_, _> =
            self.engine.named_candidates(view.id.clone(), ids).await?.into_iter().collect();
        let webhooks = self.receiving_results(view, order.kind, found.values()).await?;
        for one in &mut named {
            let Ok(id) = one.result else { continue };
            let candidate = found.get(&id).filter(|it| !(view.tenant_managed_only && it.is_operator_managed));
            let taken = match candidate {
                None => Err(AppError::NotFound("delivery")),
                Some(candidate) => check_candidate(order, candidate)
                    .and_then(|()| webhooks.get(&candidate.webhook_id).cloned().unwrap_or(Ok(()))),
            };
            one.result = taken.map(|()| id);
        }
        let taken = named.iter().filter_map(|one| one.result.clone().ok()).collect();
        order.selection.delivery_ids = Some(taken);
        Ok(named)
    }

    /// Returns for each webhook of the candidates whether deliveries can be resent to it, with one read for all of them.
    async fn receiving_results(
        &self,
        view: &TenantView,
        kind: OperationKind,
        candidates: impl Iterator<Item = &Candidate>,
    ) -> Result<HashMap<WebhookId, Result<(), AppError>>, AppError> {
        let mut results = HashMap::new();
        if kind != OperationKind::Retry {
            return Ok(results);
        }
        let ids: HashSet<_> = candidates.map(|one| one.webhook_id).collect();
        let wanted = ids.iter().copied().collect();
        let found = self.store().tenant_webhooks_by_id(view.id.clone(), wanted).await?;
        let existing = found.iter().filter(|one| one.state != WebhookState::Deleted);
        let states: HashMap<_, _> = existing.map(|one| (one.id, &one.state)).collect();
        results.extend(ids.into_iter().map(|id| (id, check_receiving(states.get(&id).copied()))));
        Ok(results)
    }
}

/// Parses ids. A repeated id is kept once.
fn parse_ids(texts: Vec<String>) -> Result<Vec<NamedDelivery>, AppError> {
    let mut seen = HashSet::new();
    let mut named = Vec::new();
    for (index, text) in texts.into_iter().enumerate() {
        if !seen.insert(text.clone()) {
            continue;
        }
        let result = text.parse().map_err(|_| {
            let field = format!("delivery_ids[{index}]");
            FieldError::new(field, "must be the id of a delivery, such as dlv_ and 32 hexadecimal digits")
                .into()
        });
        named.push(NamedDelivery { text, result });
    }
    match named.len() {
        1..=MAX_DELIVERY_IDS => Ok(named),
        count => {
            let what = format!("has {count} ids; it must have from 1 to {MAX_DELIVERY_IDS}");
            Err(FieldError::new("delivery_ids", what).into())
        }
    }
}

/// Returns why an operation does not take a delivery that exists, as the route of a single delivery would.
fn check_candidate(order: &OperationRequest, candidate: &Candidate) -> Result<(), AppError> {
    let status = candidate.status;
    let refuse = |code, detail: String| Err(AppError::conflict(code, detail));
    if order.kind == OperationKind::Cancel {
        return match status.is_final() {
            true => {
                refuse(ErrorCode::DeliveryAlreadyEnded, format!("the delivery is already {}", status.name()))
            }
            false => Ok(()),
        };
    }
    if let Some(round) = candidate.redriven_as {
        let detail = format!("this delivery was redriven as {round}; retry that one instead");
        return refuse(ErrorCode::AlreadyRedriven, detail);
    }
    if order.among == OperationTarget::Dead && !candidate.is_dead_letter() {
        let state = if candidate.is_purged { "purged from the dead letters" } else { status.name() };
        let detail =
            format!("the delivery is {state}; name it in POST /v1/deliveries/retry-batch to retry it");
        return refuse(ErrorCode::NotADeadLetter, detail);
    }
    if order.selection.undelivered_only && status == DeliveryStatus::Delivered {
        let detail = "the delivery was delivered; set include_delivered to send it again";
        return refuse(ErrorCode::AlreadyDelivered, detail.to_owned());
    }
    if candidate.is_erased {
        let detail = "the payload of this delivery's event was erased; it cannot be sent again";
        return refuse(ErrorCode::PayloadErased, detail.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_counted_once_and_malformed_ones_fail_alone() {
        let id = DeliveryId::from_bytes([3; 16]).to_string();
        let named = parse_ids(vec![id.clone(), "dlv_x".into(), id.clone()]).unwrap();
        assert_eq!(named.len(), 2);
        assert_eq!(named[0].result, Ok(DeliveryId::from_bytes([3; 16])));
        let Err(AppError::Invalid(error)) = &named[1].result else { panic!("{named:?}") };
        assert_eq!(error.field, "delivery_ids[1]");
        assert!(parse_ids(Vec::new()).is_err());
        let ids = |count: usize| (0..count).map(|n| format!("dlv_{n}")).collect();
        assert!(parse_ids(ids(MAX_DELIVERY_IDS)).is_ok() && parse_ids(ids(MAX_DELIVERY_IDS + 1)).is_err());
        assert_eq!(parse_ids(vec![id; 5_000]).unwrap().len(), 1);
    }
}
