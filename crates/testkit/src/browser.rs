//! A browser from the server's point of view: a session cookie and the CSRF token of its pages.

use crate::{Api, ApiResponse, Redrive};

/// The content type header of a form.
pub const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");

/// A browser that is logged in.
pub struct Browser {
    /// A client without a key.
    pub api: Api,
    /// The session cookie, sent with every request.
    pub cookie: String,
}

impl Browser {
    /// Logs in with an API key or the token of a portal session.
    pub async fn log_in(redrive: &Redrive, key: &str) -> Self {
        let api = redrive.api().without_key();
        let response = api.raw("POST", "/dashboard/login", &[FORM], format!("key={key}&next=")).await;
        assert_eq!(response.status, 303, "{response:?}");
        let set = response.header("set-cookie").expect("a cookie");
        assert!(set.contains("HttpOnly") && set.contains("SameSite=Lax"), "{set}");
        assert!(!set.contains(key), "the key itself stays out of the browser");
        Self { cookie: set.split(';').next().unwrap_or_default().to_owned(), api }
    }

    /// Sends `GET path`.
    pub async fn get(&self, path: &str) -> ApiResponse {
        self.api.raw("GET", path, &[("cookie", &self.cookie)], "").await
    }

    /// Fetches a page; panics unless it returns 200.
    pub async fn page(&self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status, 200, "{path}: {response:?}");
        String::from_utf8_lossy(&response.body).into_owned()
    }

    /// Returns the CSRF token of a page.
    pub async fn token(&self, page: &str) -> String {
        let html = self.page(page).await;
        let (_, rest) = html.split_once("name=\"redrive-token\" content=\"").expect("a token");
        rest.split('"').next().unwrap_or_default().to_owned()
    }

    /// Calls the API as a page does, with the cookie and the token of that page.
    pub async fn call(&self, page: &str, method: &str, path: &str, body: &str) -> ApiResponse {
        let token = self.token(page).await;
        let headers =
            [("content-type", "application/json"), ("cookie", &self.cookie), ("x-redrive-token", &token)];
        self.api.raw(method, path, &headers, body.to_owned()).await
    }
}
