//! Login of users with an identity provider, over HTTP: with the provider of the test kit, which misbehaves on request,
//! and with `oidc-provider`.

use redrive_testkit::{ApiResponse, Browser, Fault, IdentityProvider, Postgres, Redrive, Setup};
use redrive_tests::{cluster::node, entries, oidc_provider::OidcProvider, text, user_login::LoginBrowser};
use serde_json::{Value, json};

async fn start() -> (IdentityProvider, Redrive) {
    let provider = IdentityProvider::start().await;
    let redrive = Redrive::start_with(setup(&provider)).await;
    (provider, redrive)
}

fn setup(provider: &IdentityProvider) -> Setup {
    provider.settings().into_iter().fold(Setup::new(), |setup, (name, value)| setup.env(name, value))
}

fn page(response: &ApiResponse) -> String {
    String::from_utf8_lossy(&response.body).into_owned()
}

/// Asserts that a login failed with a page that says why and what to do, and with nothing that must stay secret.
#[track_caller]
fn assert_failed(browser: &LoginBrowser, response: &ApiResponse, status: u16, reason: &str) {
    let html = page(response);
    assert_eq!(response.status, status, "{reason}: {html}");
    assert!(html.contains(reason), "expected {reason:?} in {html}");
    assert!(html.contains("Log in") && html.contains("administrator") || html.contains("again"), "{html}");
    assert!(!browser.has_session(), "{reason}: a session started");
    assert!(!browser.cookies.contains_key("redrive_login"), "{reason}: the login is still in progress");
    for secret in ["eyJ", "access-1", "s3cr%t", "code-"] {
        assert!(!html.contains(secret), "{secret} is in {html}");
    }
}

async fn audit(redrive: &Redrive, action: &str) -> Vec<Value> {
    entries(&redrive.api().get(&format!("/v1/audit-log?action={action}")).await.expect(200))
}

#[tokio::test]
async fn user_logs_in_acts_and_is_named_in_the_audit_log() {
    let (provider, redrive) = start().await;
    provider.set_user("u-1", "Jane Doe", &["other", "platform"]);
    let mut browser = LoginBrowser::new(&redrive, "");
    let login = page(&browser.send("GET", "/dashboard/login?next=/dashboard/admin/keys", "").await);
    let link = "/dashboard/login/oidc?next=%2Fdashboard%2Fadmin%2Fkeys";
    assert!(login.contains(link) && login.contains("Log in with single sign-on"), "{login}");
    let url = browser.begin("/dashboard/admin/keys").await;
    let back = browser.visit_provider(&url).await;
    let response = browser.send("GET", &back, "").await;
    assert_eq!(response.header("location"), Some("/dashboard/admin/keys"), "{response:?}");
    for cookie in response.headers.get_all("set-cookie") {
        let cookie = cookie.to_str().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
    }

    let browser = LoginBrowser::new(&redrive, "").logged_in().await;
    let keys = browser.page("/dashboard/admin/keys").await;
    assert!(keys.contains("Jane Doe") && keys.contains("admin"), "{keys}");
    let created = browser.call("/dashboard/admin/keys", "POST", "/v1/tenants", r#"{"id": "acme"}"#).await;
    assert_eq!(created.status, 201, "{created:?}");
    let entry = &audit(&redrive, "tenant.create").await[0];
    assert_eq!(
        [&entry["actor"], &entry["actor_subject"], &entry["key_id"]],
        [&json!("Jane Doe"), &json!("oidc:u-1"), &Value::Null]
    );
    let shown = browser.page("/dashboard/admin/audit?action=tenant.create").await;
    assert!(shown.contains("Jane Doe") && shown.contains("oidc:u-1"), "{shown}");
    let logins = audit(&redrive, "user.log_in").await;
    assert_eq!(logins.len(), 2);
    assert_eq!(logins[0]["after"], json!({"name": "Jane Doe", "role": "admin"}));
}

#[tokio::test]
async fn invalid_tokens_and_responses_are_rejected() {
    let (provider, redrive) = start().await;
    provider.set_user("u-1", "Jane Doe", &["platform"]);
    LoginBrowser::new(&redrive, "").logged_in().await;
    let not_signed = "it is not signed with an accepted algorithm";
    for (fault, status, reason) in [
        (Fault::WrongIssuer, 403, "another issuer created it"),
        (Fault::WrongAudience, 403, "it is for another client"),
        (Fault::OtherParty, 403, "it is for another client"),
        (Fault::WrongNonce, 403, "wrong nonce"),
        (Fault::MissingNonce, 403, "wrong nonce"),
        (Fault::Expired, 403, "it has expired"),
        (Fault::MissingExpiry, 403, "it is malformed"),
        (Fault::TextualExpiry, 403, "it is malformed"),
        (Fault::IssuedInFuture, 403, "it was issued in the future"),
        (Fault::TamperedClaims, 403, "its signature does not match"),
        (Fault::Unsigned, 403, not_signed),
        (Fault::SignedWithClientSecret, 403, not_signed),
        (Fault::SignedWithPublicKey, 403, not_signed),
        (Fault::UnpublishedKey, 403, "its key is unknown"),
        (Fault::MissingSubject, 403, "it is malformed"),
        (Fault::ResponseOfOtherIssuer, 403, "another issuer created it"),
        (Fault::Refuses, 403, "access_denied (&#60;b&#62;no\\u{202e}&#60;/b&#62;)"),
        (Fault::MissingIdToken, 502, "returned an invalid response"),
        (Fault::HtmlTokenResponse, 502, "returned an invalid response"),
        (Fault::EndlessTokenResponse, 502, "returned an invalid response"),
    ] {
        provider.set_fault(fault);
        let mut browser = LoginBrowser::new(&redrive, "");
        let response = browser.log_in().await;
        assert_failed(&browser, &response, status, reason);
    }
    provider.set_fault(Fault::OtherUserinfo);
    provider.move_groups_to_userinfo();
    let mut browser = LoginBrowser::new(&redrive, "");
    let response = browser.log_in().await;
    assert_failed(&browser, &response, 403, "it is for another user than the provider describes");
    assert_eq!(
        audit(&redrive, "user.").await.len(),
        1,
        "a login that failed is in the audit log as a session"
    );
    let log = redrive.output();
    for secret in ["eyJ", "access-1", "s3cr%t"] {
        assert!(!log.contains(secret), "{secret} is in the log:\n{log}");
    }
}

#[tokio::test]
async fn user_without_a_role_is_not_allowed() {
    let (provider, redrive) = start().await;
    for groups in [&[][..], &["Platform"], &["platform-guests"]] {
        provider.set_user("u-1", "Jane <Doe>", groups);
        let mut browser = LoginBrowser::new(&redrive, "");
        let response = browser.log_in().await;
        assert_failed(&browser, &response, 403, "the account Jane &#60;Doe&#62; is in no group that may use");
    }
    provider.set_user("u-1", "Jane", &["platform"]);
    provider.move_groups_to_userinfo();
    LoginBrowser::new(&redrive, "").logged_in().await.page("/dashboard/admin/settings").await;
}

#[tokio::test]
async fn login_is_bound_to_its_browser_and_used_once() {
    let (provider, redrive) = start().await;
    provider.set_user("u-1", "Jane Doe", &["platform"]);
    provider.set_fault(Fault::AcceptsCodeTwice);
    let mut own = LoginBrowser::new(&redrive, "");
    let url = own.begin("").await;
    let back = own.visit_provider(&url).await;

    // A browser that did not start the login, such as one that follows an attacker's link.
    let mut victim = LoginBrowser::new(&redrive, "");
    let response = victim.send("GET", &back, "").await;
    assert_failed(&victim, &response, 403, "no login in progress");
    victim.begin("").await;
    let response = victim.send("GET", &back, "").await;
    assert_failed(&victim, &response, 403, "does not belong to the login");
    assert_eq!(provider.count("/token"), 0, "a foreign code was exchanged");

    let login = own.cookies.clone();
    assert_eq!(own.send("GET", &back, "").await.status, 303);
    assert!(own.has_session());
    // Not even a provider that accepts a code twice lets a login start two sessions.
    let mut copy = LoginBrowser::new(&redrive, "");
    copy.cookies = login.clone();
    let response = copy.send("GET", &back, "").await;
    assert_failed(&copy, &response, 403, "already used");
    provider.set_fault(Fault::None);
    let mut copy = LoginBrowser::new(&redrive, "");
    copy.cookies = login;
    assert_eq!(copy.send("GET", &back, "").await.status, 403);
    // Other parameters than those of this login.
    for path in ["", "?state=x&code=y", "?error=access_denied&error_description=attackers+text"] {
        let mut browser = LoginBrowser::new(&redrive, "");
        browser.begin("").await;
        let response = browser.send("GET", &format!("/dashboard/login/oidc/callback{path}"), "").await;
        assert_failed(&browser, &response, 403, "does not belong to the login");
        assert!(!page(&response).contains("attackers"), "{}", page(&response));
    }
}

#[tokio::test]
async fn login_begun_on_one_node_is_finished_on_another_and_only_once() {
    let public_url = "http://hooks.example.com";
    let (provider, database) = tokio::join!(IdentityProvider::start(), Postgres::shared());
    provider.set_user("u-1", "Jane Doe", &["platform"]);
    provider.set_fault(Fault::AcceptsCodeTwice);
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let setup = node(&database.url(), name).env("REDRIVE_SERVER_PUBLIC_URL", public_url);
        let settings = provider.settings().into_iter();
        nodes.push(
            Redrive::start_with(settings.fold(setup, |setup, (name, value)| setup.env(name, value))).await,
        );
    }
    let mut browser = LoginBrowser::behind_balancer(&nodes[0], "", public_url);
    let url = browser.begin("").await;
    let back = browser.visit_provider(&url).await;
    let login = browser.cookies.clone();
    browser.use_node(&nodes[1]);
    let response = browser.send("GET", &back, "").await;
    assert_eq!((response.status, browser.has_session()), (303, true), "{response:?}");
    // Every node accepts the session.
    for node in &nodes {
        browser.use_node(node);
        let session = page(&browser.send("GET", "/dashboard/session", "").await);
        assert!(
            session.contains("logged in as <b>Jane Doe</b>, an administrator of all tenants"),
            "{session}"
        );
    }
    // The node that began the login knows that another one has used it.
    let mut copy = LoginBrowser::behind_balancer(&nodes[0], "", public_url);
    copy.cookies = login;
    let response = copy.send("GET", &back, "").await;
    assert_failed(&copy, &response, 403, "already used");
    // So do nodes that receive the same response at the same time.
    let mut both = Vec::new();
    let mut browser = LoginBrowser::behind_balancer(&nodes[1], "", public_url);
    let url = browser.begin("").await;
    let back = browser.visit_provider(&url).await;
    for node in &nodes {
        let mut copy = LoginBrowser::behind_balancer(node, "", public_url);
        copy.cookies = browser.cookies.clone();
        both.push(copy);
    }
    let [first, second] = &mut both[..] else { unreachable!() };
    let (one, other) = tokio::join!(first.send("GET", &back, ""), second.send("GET", &back, ""));
    let mut statuses = [one.status, other.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [303, 403]);
}

#[tokio::test]
async fn login_continues_only_at_dashboard_pages() {
    let (provider, redrive) = start().await;
    provider.set_user("u-1", "Jane Doe", &["readers"]);
    for (next, location) in [
        ("/dashboard/t/default/events%3Fstatus=dead", "/dashboard/t/default/events?status=dead"),
        ("https://evil.example", "/dashboard/t/default"),
        ("//evil.example", "/dashboard/t/default"),
        ("/dashboard/%5Cevil", "/dashboard/t/default"),
    ] {
        let mut browser = LoginBrowser::new(&redrive, "");
        let url = browser.begin(next).await;
        let back = browser.visit_provider(&url).await;
        assert_eq!(browser.send("GET", &back, "").await.header("location"), Some(location), "{next}");
    }
}

#[tokio::test]
async fn login_asks_before_it_replaces_the_session_of_a_key() {
    let (provider, redrive) = start().await;
    provider.set_user("u-1", "Jane Doe", &["support"]);
    let mut browser = LoginBrowser::new(&redrive, "");
    let form = format!("key={}&next=", redrive.key());
    assert_eq!(browser.send("POST", "/dashboard/login", &form).await.status, 303);
    let key_session = browser.cookies["redrive_session"].clone();
    let response = browser.log_in().await;
    let html = page(&response);
    assert_eq!(response.status, 409, "{html}");
    assert!(html.contains("Switch sessions?") && html.contains("an operator of all tenants"), "{html}");
    assert_eq!(browser.cookies["redrive_session"], key_session);
    let field = |name: &str| {
        let (_, rest) = html.split_once(&format!("name=\"{name}\" value=\"")).expect("a field");
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    // The form of another page does not replace it.
    let forged = format!("offer={}&replace=x&next=", field("offer"));
    assert_eq!(browser.send("POST", "/dashboard/login", &forged).await.status, 409);
    let confirmed = format!("offer={}&replace={}&next=", field("offer"), field("replace"));
    assert_eq!(browser.send("POST", "/dashboard/login", &confirmed).await.status, 303);
    let shown = page(&browser.send("GET", "/dashboard/session", "").await);
    assert!(shown.contains("logged in as <b>Jane Doe</b>, an operator of all tenants"), "{shown}");
    let reused = browser.send("POST", "/dashboard/login", &confirmed).await;
    assert_ne!(reused.status, 303, "an offer was used twice");
}

#[tokio::test]
async fn sessions_of_a_user_end_everywhere() {
    let (provider, redrive) = start().await;
    let log_in = async |subject: &str| {
        provider.set_user(subject, "Jane Doe", &["readers"]);
        LoginBrowser::new(&redrive, "").logged_in().await
    };
    let (first, second, other) = (log_in("u/1").await, log_in("u/1").await, log_in("u-2").await);
    let session = first.page("/dashboard/session").await;
    assert!(session.contains("You have 2 sessions"), "{session}");
    let token = first.token("/dashboard/session").await;
    let status = async |browser: &Browser| browser.get("/dashboard/session").await.status;
    let form = format!("token={token}&everywhere=true");
    let headers = [redrive_testkit::FORM, ("cookie", &*first.cookie)];
    assert_eq!(first.api.raw("POST", "/dashboard/logout", &headers, form).await.status, 303);
    assert_eq!([status(&first).await, status(&second).await, status(&other).await], [303, 303, 200]);

    // An admin ends the sessions of a user by the subject.
    let again = log_in("u/1").await;
    let ended = redrive.api().delete("/v1/users/u%2F1/sessions").await.expect(200);
    assert_eq!(ended, json!({"ended": 1}));
    assert_eq!([status(&again).await, status(&other).await], [303, 200]);
    assert_eq!(redrive.api().delete("/v1/users/u%2F1/sessions").await.expect(200), json!({"ended": 0}));
    // Also as the audit log writes the subject.
    let last = log_in("u/1").await;
    let ended = redrive.api().delete("/v1/users/oidc:u%2F1/sessions").await.expect(200);
    assert_eq!((ended, status(&last).await), (json!({"ended": 1}), 303));
    let ends = audit(&redrive, "user.end_sessions").await;
    let actors: Vec<_> = ends.iter().map(|entry| text(&entry["actor"])).collect();
    assert_eq!(actors, ["admin", "admin", "admin", "Jane Doe"]);
    assert!(ends.iter().all(|entry| entry["object_id"] == "oidc:u/1"), "{ends:#?}");
}

#[tokio::test]
async fn admin_lists_sessions_of_users_and_ends_one() {
    let (provider, redrive) = start().await;
    let log_in = async |subject: &str, groups: &[&str]| {
        provider.set_user(subject, "Jane Doe", groups);
        LoginBrowser::new(&redrive, "").logged_in().await
    };
    let (first, second) = (log_in("u/1", &["readers"]).await, log_in("u/1", &["support"]).await);
    let admin = log_in("u-2", &["platform"]).await;
    let api = redrive.api();
    let listed = api.get("/v1/user-sessions").await.expect(200);
    let sessions = listed["data"].as_array().unwrap();
    let of = |field: &str| sessions.iter().map(|one| text(&one[field]).to_owned()).collect::<Vec<_>>();
    assert_eq!(of("subject"), ["u-2", "u/1", "u/1"]);
    assert_eq!(of("role"), ["admin", "operator", "viewer"]);
    assert!(sessions.iter().all(|one| one["name"] == "Jane Doe"), "{listed:#}");
    let status = async |browser: &Browser| browser.get("/dashboard/session").await.status;
    assert_eq!(status(&first).await, 200);
    let used = api.get("/v1/user-sessions").await.expect(200);
    let last = used["data"][2]["last_used_at"].as_str().unwrap();
    assert!(last >= text(&used["data"][2]["created_at"]), "{used:#}");
    let page = api.get("/v1/user-sessions?limit=2").await.expect(200);
    let rest = format!("/v1/user-sessions?limit=2&cursor={}", text(&page["next_cursor"]));
    assert_eq!(api.get(&rest).await.expect(200)["data"][0]["id"], sessions[2]["id"]);

    let one = format!("/v1/user-sessions/{}", text(&sessions[2]["id"]));
    api.delete(&one).await.expect(204);
    assert_eq!([status(&first).await, status(&second).await, status(&admin).await], [303, 200, 200]);
    assert_eq!(api.delete(&one).await.status, 404);
    let ends = audit(&redrive, "user.end_session").await;
    assert!(
        ends.iter().any(|entry| entry["object_id"] == "oidc:u/1" && entry["result"] == "done"),
        "{ends:#?}"
    );

    // The page shows them to admins only.
    let page = admin.page("/dashboard/admin/user-sessions").await;
    assert!(page.contains("u/1") && page.contains("/v1/users/u%2F1/sessions"), "{page}");
    assert_eq!(second.get("/dashboard/admin/user-sessions").await.status, 403);
}

#[tokio::test]
async fn sessions_survive_a_restart_and_end_with_the_provider_setting() {
    let provider = IdentityProvider::start().await;
    let folder = tempfile::tempdir().unwrap();
    provider.set_user("u-1", "Jane Doe", &["readers"]);
    let mut redrive = Redrive::start_with(setup(&provider).data_dir(folder.path())).await;
    let browser = LoginBrowser::new(&redrive, "").logged_in().await;
    redrive.restart().await;
    let api = redrive.api().without_key();
    let status = async |api: &redrive_testkit::Api| {
        api.raw("GET", "/dashboard/session", &[("cookie", &*browser.cookie)], "").await.status
    };
    assert_eq!(status(&api).await, 200, "a node that did not start the session accepts it");
    redrive.kill();
    drop(redrive);
    let redrive = Redrive::start_with(Setup::new().data_dir(folder.path())).await;
    let api = redrive.api().without_key();
    assert_eq!(status(&api).await, 303, "users of a provider that is not configured any more have sessions");
    let login = api.get("/dashboard/login").await;
    assert!(!page(&login).contains("oidc"), "{}", page(&login));
    assert_eq!(api.get("/dashboard/login/oidc").await.status, 404);
    redrive.api().delete("/v1/users/u-1/sessions").await.expect(404);
}

#[tokio::test]
async fn outage_of_the_provider_affects_only_new_logins() {
    let (provider, redrive) = start().await;
    provider.set_user("u-1", "Jane Doe", &["readers"]);
    let session = LoginBrowser::new(&redrive, "").logged_in().await;
    let mut between = LoginBrowser::new(&redrive, "");
    let url = between.begin("").await;
    let back = between.visit_provider(&url).await;
    drop(provider);
    let response = between.send("GET", &back, "").await;
    assert_failed(&between, &response, 503, "the identity provider is not available");
    assert!(page(&response).contains("API keys still log in"));
    session.page("/dashboard/t/default").await;
    let mut browser = LoginBrowser::new(&redrive, "");
    let form = format!("key={}&next=", redrive.key());
    assert_eq!(browser.send("POST", "/dashboard/login", &form).await.status, 303);
    assert_eq!(redrive.api().get("/readyz").await.status, 200);
}

#[tokio::test]
async fn unavailable_or_foreign_provider_is_reported_at_the_login() {
    let provider = IdentityProvider::start().await;
    provider.set_fault(Fault::DiscoveryOfOtherIssuer);
    let redrive = Redrive::start_with(setup(&provider)).await;
    let mut browser = LoginBrowser::new(&redrive, "");
    let response = browser.send("GET", "/dashboard/login/oidc", "").await;
    assert_failed(&browser, &response, 502, "returned an invalid response");
    assert!(!page(&response).contains("other.example.com"), "{}", page(&response));
    redrive.wait_output("it names itself").await;
    let discoveries = provider.count("/.well-known/openid-configuration");
    let response = browser.send("GET", "/dashboard/login/oidc", "").await;
    assert_failed(&browser, &response, 502, "returned an invalid response");
    assert_eq!(provider.count("/.well-known/openid-configuration"), discoveries, "a failure is remembered");

    let setup = setup(&provider);
    drop(provider);
    let redrive = Redrive::start_with(setup).await;
    let mut browser = LoginBrowser::new(&redrive, "");
    let response = browser.send("GET", "/dashboard/login/oidc", "").await;
    assert_failed(&browser, &response, 503, "the identity provider is not available");
}

#[tokio::test]
async fn new_keys_of_the_provider_are_fetched_and_unknown_ones_not_repeatedly() {
    let (provider, redrive) = start().await;
    provider.set_user("u-1", "Jane Doe", &["readers"]);
    LoginBrowser::new(&redrive, "").logged_in().await;
    LoginBrowser::new(&redrive, "").logged_in().await;
    assert_eq!(provider.count("/jwks"), 1, "keys are cached");
    provider.rotate_key();
    LoginBrowser::new(&redrive, "").logged_in().await;
    assert_eq!(provider.count("/jwks"), 2);
    provider.set_fault(Fault::UnpublishedKey);
    for _ in 0..3 {
        let mut browser = LoginBrowser::new(&redrive, "");
        let response = browser.log_in().await;
        assert_failed(&browser, &response, 403, "its key is unknown");
    }
    assert_eq!(provider.count("/jwks"), 2, "forged tokens cause no further requests in the interval");
    assert_eq!(provider.count("/.well-known/openid-configuration"), 1);
}

#[tokio::test]
async fn users_of_oidc_provider_log_in_by_their_groups() {
    let (mut provider, redrive) = OidcProvider::start().await;
    for (account, role) in [("jane", "an administrator"), ("oscar", "an operator"), ("vera", "a viewer")] {
        let browser = LoginBrowser::new(&redrive, account).logged_in().await;
        let session = browser.page("/dashboard/session").await;
        assert!(session.contains(&format!("{role} of all tenants")), "{session}");
    }
    let mut eve = LoginBrowser::new(&redrive, "eve");
    let response = eve.log_in().await;
    assert_failed(&eve, &response, 403, "the account Eve Else is in no group");

    // The provider accepts a code once.
    let mut browser = LoginBrowser::new(&redrive, "jane");
    let url = browser.begin("").await;
    let back = browser.visit_provider(&url).await;
    let login = browser.cookies.clone();
    assert_eq!(browser.send("GET", &back, "").await.status, 303);
    let mut copy = LoginBrowser::new(&redrive, "jane");
    copy.cookies = login;
    let response = copy.send("GET", &back, "").await;
    assert_failed(&copy, &response, 403, "did not accept the code");

    provider.rotate_keys().await;
    let jane = LoginBrowser::new(&redrive, "jane").logged_in().await;
    provider.stop().await;
    let mut late = LoginBrowser::new(&redrive, "jane");
    let url = late.begin("").await;
    assert!(url.starts_with("http://127.0.0.1:"), "the address of the provider is cached: {url}");
    jane.page("/dashboard/t/default").await;
}
