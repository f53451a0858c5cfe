//! The id that the application gives to a webhook, unique among the webhooks of a tenant.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    external_id::{EXTERNAL_ID_RULE, is_external_id},
    field_error::FieldError,
    id::WebhookId,
};

/// Id that the application gives to a webhook. It never begins with `wh_`, so it is never taken for a [`WebhookId`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WebhookUid(Arc<str>);

impl WebhookUid {
    /// Parses a uid.
    pub fn parse(text: &str) -> Result<Self, FieldError> {
        if !is_external_id(text) {
            return Err(FieldError::new("uid", EXTERNAL_ID_RULE));
        }
        if text.starts_with(WebhookId::PREFIX) {
            let message =
                "must not begin with wh_, which ids given by Redrive begin with; choose another uid";
            return Err(FieldError::new("uid", message));
        }
        Ok(Self(text.into()))
    }

    /// Returns the uid as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WebhookUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for WebhookUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for WebhookUid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for WebhookUid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|invalid| de::Error::custom(invalid.message))
    }
}

/// How a request names a webhook: by its id, or by its uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WebhookRef {
    /// Id given by Redrive.
    Id(WebhookId),
    /// Id given by the application.
    Uid(WebhookUid),
}

impl FromStr for WebhookRef {
    type Err = FieldError;

    fn from_str(text: &str) -> Result<Self, FieldError> {
        if text.starts_with(WebhookId::PREFIX) {
            let id = text.parse().map_err(|error: crate::id::InvalidId| {
                FieldError::new("webhook_id", format!("{error}, or the uid of a webhook"))
            });
            return id.map(Self::Id);
        }
        let uid = WebhookUid::parse(text).map_err(|_| {
            let message = "is neither the id of a webhook (wh_ and 32 hex digits) nor a uid";
            FieldError::new("webhook_id", message)
        });
        uid.map(Self::Uid)
    }
}

impl fmt::Display for WebhookRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Uid(uid) => uid.fmt(f),
        }
    }
}

impl From<WebhookId> for WebhookRef {
    fn from(id: WebhookId) -> Self {
        Self::Id(id)
    }
}

impl Serialize for WebhookRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WebhookRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|invalid: FieldError| de::Error::custom(invalid.message))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::Time;

    #[test]
    fn uid_that_looks_like_an_id_is_refused() {
        let id = WebhookId::new(Time::from_millis(1), &[7; 10]);
        for bad in [id.to_string().as_str(), "wh_", "wh_orders", "", "..", "a/b"] {
            assert_eq!(WebhookUid::parse(bad).unwrap_err().field, "uid", "{bad}");
        }
        for good in ["orders", "Orders", "wh-orders", "WH_1", "crm:eu.1", "evt_1"] {
            assert_eq!(WebhookUid::parse(good).unwrap().as_str(), good);
        }
        assert_ne!(WebhookUid::parse("orders"), WebhookUid::parse("Orders"));
    }

    #[test]
    fn reference_is_an_id_or_a_uid() {
        let id = WebhookId::new(Time::from_millis(1), &[7; 10]);
        assert_eq!(id.to_string().parse(), Ok(WebhookRef::Id(id)));
        assert_eq!("orders".parse(), Ok(WebhookRef::Uid(WebhookUid::parse("orders").unwrap())));
        let refused = "wh_orders".parse::<WebhookRef>().unwrap_err();
        assert!(refused.message.contains("wh_<32 hex digits>"), "{refused}");
        assert!("a b".parse::<WebhookRef>().is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn no_text_is_both_an_id_and_a_uid(
            text in prop_oneof!["wh_[0-9a-f]{32}", "[wW][hH]_[a-z0-9]{0,34}", "[a-zA-Z0-9._:-]{0,130}"],
        ) {
            let (id, uid) = (text.parse::<WebhookId>(), WebhookUid::parse(&text));
            prop_assert!(id.is_err() || uid.is_err());
            match text.parse::<WebhookRef>() {
                Ok(WebhookRef::Id(named)) => prop_assert_eq!(Ok(named), id),
                Ok(WebhookRef::Uid(named)) => prop_assert_eq!(Ok(named), uid),
                Err(_) => prop_assert!(id.is_err() && uid.is_err()),
            }
        }
    }
}
