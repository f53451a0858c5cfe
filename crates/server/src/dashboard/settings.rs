//! Settings page: effective settings and status of this node. It is read-only and shows no secrets.

use askama::Template;
use axum::extract::State;
use redrive_core::delivery::lane::Priority;

use super::{
    PageResult, format,
    page::{Html, PageContext},
    viewer::AdminViewer,
};
use crate::{
    api::AppState,
    app::node_info::NodeInfo,
    config::{self, EffectiveSetting},
};

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage<'a> {
    layout: PageContext,
    about: NodeInfo<'a>,
    sections: Vec<Section<'a>>,
}

impl SettingsPage<'_> {
    /// Formats the store's backlog by priority.
    fn waiting(&self) -> String {
        let waiting = self.about.vitals.as_ref().map(|vitals| vitals.waiting).unwrap_or_default();
        let each = Priority::ALL.into_iter().zip(waiting);
        let each = each.map(|(priority, count)| format!("{} {}", format::number(count), priority.name()));
        each.collect::<Vec<_>>().join(" · ")
    }
}

/// A section of settings.
struct Section<'a> {
    name: &'static str,
    settings: Vec<&'a EffectiveSetting>,
}

/// Sections of the configuration file with their titles.
const SECTIONS: [(&str, &str); 24] = [
    ("", "This node"),
    ("server", "HTTP server"),
    ("database", "Store"),
    ("cluster", "Cluster"),
    ("redis", "Redis"),
    ("amqp", "RabbitMQ"),
    ("auth", "Authentication"),
    ("oidc", "Identity provider"),
    ("secrets", "Master key"),
    ("audit", "Audit log"),
    ("egress", "Egress rules"),
    ("delivery", "Concurrency and memory"),
    ("events", "Publishing"),
    ("retention", "Retention"),
    ("archive", "Archive"),
    ("retry", "Retries"),
    ("circuit_breaker", "Circuit breaker"),
    ("limits", "Rate limits"),
    ("webhooks", "Automatic disabling of webhooks"),
    ("smtp", "Email"),
    ("notifications", "Notifications"),
    ("log", "Logging"),
    ("metrics", "Metrics"),
    ("tracing", "Tracing"),
];

fn sections(settings: &[EffectiveSetting]) -> Vec<Section<'_>> {
    let prefix_of = |key: &str| key.split_once('.').map_or("", |(section, _)| section).to_owned();
    let section = |(prefix, name): (&str, &'static str)| {
        let settings = settings.iter().filter(|setting| prefix_of(setting.key) == prefix);
        Section { name, settings: settings.collect() }
    };
    let known = SECTIONS.into_iter().map(section);
    let is_listed =
        |setting: &&EffectiveSetting| SECTIONS.iter().any(|(known, _)| prefix_of(setting.key) == *known);
    let rest = settings.iter().filter(|setting| !is_listed(setting));
    let rest = Section { name: "Development", settings: rest.collect() };
    known.chain([rest]).filter(|section| !section.settings.is_empty()).collect()
}

/// Renders the page.
pub(super) async fn page(State(app): State<AppState>, admin: AdminViewer) -> PageResult {
    let about = app.node_info().await?;
    let sections = sections(&about.identity.settings);
    Html::render(&SettingsPage { layout: admin.layout("settings"), about, sections })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Profile, SETTINGS};

    #[test]
    fn every_setting_is_in_one_section() {
        let settings = Config::defaults(Profile::Serve).effective_settings(Profile::Serve);
        let sections = sections(&settings);
        assert_eq!(sections.iter().map(|section| section.settings.len()).sum::<usize>(), SETTINGS.len());
        let rest = sections.last().unwrap();
        assert!(
            rest.settings.iter().all(|setting| setting.key.starts_with("dev.")),
            "a section is missing in SECTIONS"
        );
    }
}
