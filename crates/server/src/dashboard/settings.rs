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
    frame: PageContext,
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
const SECTIONS: [(&str, &str); 23] = [
    ("", "This node"),
    ("server", "The HTTP server"),
    ("database", "The store"),
    ("cluster", "Among other nodes"),
    ("redis", "Redis"),
    ("amqp", "RabbitMQ"),
    ("auth", "Who may come in"),
    ("secrets", "The master key"),
    ("audit", "The audit log"),
    ("egress", "The way out"),
    ("delivery", "How much at once"),
    ("events", "What is taken in"),
    ("retention", "How long things are kept"),
    ("archive", "The archive"),
    ("retry", "Retries"),
    ("circuit_breaker", "When to stop calling an endpoint that fails"),
    ("limits", "How fast"),
    ("webhooks", "Webhooks that never work"),
    ("smtp", "Mails to owners"),
    ("notifications", "Telling owners"),
    ("log", "The log"),
    ("metrics", "Figures for Prometheus"),
    ("tracing", "Traces"),
];

fn sections(settings: &[EffectiveSetting]) -> Vec<Section<'_>> {
    let of = |key: &str| key.split_once('.').map_or("", |(section, _)| section).to_owned();
    let section = |(prefix, name): (&str, &'static str)| {
        let settings = settings.iter().filter(|setting| of(setting.key) == prefix);
        Section { name, settings: settings.collect() }
    };
    let known = SECTIONS.into_iter().map(section);
    let rest = settings.iter().filter(|setting| !SECTIONS.iter().any(|(known, _)| of(setting.key) == *known));
    let rest = Section { name: "For trying things out", settings: rest.collect() };
    known.chain([rest]).filter(|section| !section.settings.is_empty()).collect()
}

/// Renders the page.
pub(super) async fn page(State(app): State<AppState>, admin: AdminViewer) -> PageResult {
    let about = app.node_info().await?;
    let sections = sections(&about.identity.settings);
    Html::render(&SettingsPage { frame: admin.frame("settings"), about, sections })
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
        assert!(rest.settings.iter().all(|setting| setting.key.starts_with("dev.")), "a section has no name");
    }
}
