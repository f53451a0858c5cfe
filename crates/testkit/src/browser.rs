//! Somebody's browser, as far as the server can tell: a cookie, and the token that its pages have.

use crate::{Answer, Api, Redrive};

/// The header of a form.
pub const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// A browser that is logged in.
pub struct Browser {
    /// A client without a key.
    pub api: Api,
    /// What the browser sends with every request.
    pub cookie: String,
}

impl Browser {
    /// Logs in with a key, or the token of a portal session.
    pub async fn of(redrive: &Redrive, key: &str) -> Self {
        let api = redrive.api().without_key();
        let answer = api.raw("POST", "/dashboard/login", &[FORM], format!("key={key}&next=")).await;
        assert_eq!(answer.status, 303, "{answer:?}");
        let set = answer.header("set-cookie").expect("a cookie");
        assert!(set.contains("HttpOnly") && set.contains("SameSite=Lax"), "{set}");
        assert!(!set.contains(key), "the key itself stays out of the browser");
        Self { cookie: set.split(';').next().unwrap_or_default().to_owned(), api }
    }

    /// `GET path`.
    pub async fn get(&self, path: &str) -> Answer {
        self.api.raw("GET", path, &[("cookie", &self.cookie)], "").await
    }

    /// A page that must be there.
    pub async fn page(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    /// The token that a page has.
    pub async fn token(&self, page: &str) -> String {
        let html = self.page(page).await;
        let (_, rest) = html.split_once("name=\"redrive-token\" content=\"").expect("a token");
        rest.split('"').next().unwrap_or_default().to_owned()
    }

    /// Calls the API as a page does: with the cookie and the token of that page.
    pub async fn call(&self, page: &str, method: &str, path: &str, body: &str) -> Answer {
        let token = self.token(page).await;
        let headers =
            [("content-type", "application/json"), ("cookie", &self.cookie), ("x-redrive-token", &token)];
        self.api.raw(method, path, &headers, body.to_owned()).await
    }
}
