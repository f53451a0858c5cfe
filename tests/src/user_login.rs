//! Login of a user over HTTP, as a browser does it: from Redrive to the identity provider and back.

use std::collections::BTreeMap;

use redrive_testkit::{Api, ApiResponse, Browser, FORM, Redrive};

/// Maximum number of responses of a provider until it sends the browser back.
const MAX_STEPS: usize = 10;

/// A browser in which a user logs in.
pub struct LoginBrowser {
    redrive: Api,
    base: String,
    /// Cookies of Redrive.
    pub cookies: BTreeMap<String, String>,
    /// Account that is entered in the provider's form, if it shows one.
    account: String,
}

impl LoginBrowser {
    /// Opens a browser.
    pub fn new(redrive: &Redrive, account: &str) -> Self {
        let base = format!("http://{}", redrive.address());
        let redrive = redrive.api().without_key();
        Self { redrive, base, cookies: BTreeMap::new(), account: account.into() }
    }

    /// Opens a browser that reaches the nodes at one address, as behind a load balancer. The requests go to this node.
    pub fn behind_balancer(redrive: &Redrive, account: &str, public_url: &str) -> Self {
        Self { base: public_url.to_owned(), ..Self::new(redrive, account) }
    }

    /// Sends the next requests to this node, as a load balancer may.
    pub fn use_node(&mut self, redrive: &Redrive) {
        self.redrive = redrive.api().without_key();
    }

    /// Sends a request with the browser's cookies, and keeps those of the response.
    pub async fn send(&mut self, method: &str, path: &str, form: &str) -> ApiResponse {
        let headers = [FORM, ("cookie", &*join(&self.cookies))];
        let response = self.redrive.raw(method, path, &headers, form.to_owned()).await;
        keep_cookies(&mut self.cookies, &response);
        response
    }

    /// Follows the link of the login page, and returns the URL at the provider.
    pub async fn begin(&mut self, next: &str) -> String {
        let response = self.send("GET", &format!("/dashboard/login/oidc?next={next}"), "").await;
        assert_eq!(response.status, 303, "{response:?}");
        response.header("location").expect("a redirect").to_owned()
    }

    /// Logs in at the provider, and returns the path with which it sends the browser back.
    pub async fn visit_provider(&self, url: &str) -> String {
        let mut cookies = BTreeMap::new();
        let (origin, mut path) = split(url);
        let address = origin.strip_prefix("http://").and_then(|address| address.parse().ok());
        let provider = Api::new(address.expect("a provider on this machine"), "").without_key();
        let mut form = None;
        for _ in 0..MAX_STEPS {
            let method = if form.is_some() { "POST" } else { "GET" };
            let headers = [FORM, ("cookie", &*join(&cookies))];
            let response = provider.raw(method, &path, &headers, form.take().unwrap_or_default()).await;
            keep_cookies(&mut cookies, &response);
            match response.header("location") {
                Some(location) => match location.strip_prefix(&self.base) {
                    Some(back) => return back.to_owned(),
                    None => path = location.strip_prefix(&origin).unwrap_or(location).to_owned(),
                },
                None => {
                    assert_eq!(response.status, 200, "{response:?}");
                    form = Some(format!("account={}", self.account));
                }
            }
        }
        panic!("the provider does not send the browser back from {path}");
    }

    /// Logs in. Returns the response of Redrive to the browser that the provider sent back.
    pub async fn log_in(&mut self) -> ApiResponse {
        let url = self.begin("").await;
        let back = self.visit_provider(&url).await;
        self.send("GET", &back, "").await
    }

    /// Logs in; panics unless a session starts.
    pub async fn logged_in(mut self) -> Browser {
        let response = self.log_in().await;
        assert_eq!(response.status, 303, "{response:?}");
        let session = self.cookies.get("redrive_session").expect("a session");
        Browser { api: self.redrive.clone(), cookie: format!("redrive_session={session}") }
    }

    /// Returns whether the browser has a session.
    pub fn has_session(&self) -> bool {
        self.cookies.contains_key("redrive_session")
    }
}

/// Returns the origin and the rest of a URL.
fn split(url: &str) -> (String, String) {
    let start = "http://".len();
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    (url[..end].to_owned(), url[end..].to_owned())
}

fn join(cookies: &BTreeMap<String, String>) -> String {
    cookies.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
}

fn keep_cookies(cookies: &mut BTreeMap<String, String>, response: &ApiResponse) {
    for cookie in response.headers.get_all("set-cookie") {
        let cookie = cookie.to_str().expect("a cookie is text");
        let (name, value) = cookie.split(';').next().and_then(|pair| pair.split_once('=')).expect("a pair");
        match value.is_empty() {
            true => cookies.remove(name),
            false => cookies.insert(name.to_owned(), value.to_owned()),
        };
    }
}
