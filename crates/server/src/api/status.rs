//! `/v1/status`: how the installation is doing, for admins and for `redrive status`.

use axum::extract::State;
use redrive_core::{
    Role, Time,
    delivery::lane::Priority,
    maintenance::durability::Durability,
    statistics::status::{Finding, Level},
};
use redrive_store::Node;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    AppState,
    extract::{Administers, May},
    problem::{Problem, ReadProblems},
};
use crate::app::status::Status;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(status))
}

/// How an installation is doing. What cannot be found out at the moment is null.
#[derive(Serialize, ToSchema)]
struct StatusView {
    /// How urgent the most urgent finding is.
    status: Level,
    /// What needs somebody, the most urgent first.
    findings: Vec<Finding>,
    /// The node that was asked.
    node: NodeView,
    /// Redrive's version.
    version: &'static str,
    /// Since when the node that was asked runs.
    #[schema(value_type = String, format = DateTime)]
    started_at: Time,
    /// All nodes, the one that was asked too.
    nodes: Vec<NodeView>,
    /// The store.
    store: StoreView,
    /// Whether Redis answers; null where there is none.
    redis: Option<Up>,
    /// Whether RabbitMQ is there; null where there is none.
    rabbitmq: Option<Up>,
    /// Whether mails to owners go out, as far as the node that was asked has tried; null where none are sent.
    mail: Option<Up>,
    /// What waits.
    queue: QueueView,
    /// Requests under way on the node that was asked.
    slots: SlotsView,
    /// Circuits, among the webhooks that the node that was asked knows.
    circuits: CircuitsView,
    /// Deliveries that were given up on and not redriven.
    dead_letters: Option<u64>,
}

/// Whether something answers.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Up {
    Up,
    Down,
}

impl Up {
    fn of(up: bool) -> Self {
        if up { Self::Up } else { Self::Down }
    }
}

/// A node.
#[derive(Serialize, ToSchema)]
struct NodeView {
    /// What its operator calls it.
    name: String,
    /// What it is there for.
    role: Role,
    /// The pools that it sends for.
    pools: Vec<String>,
    /// This start of it, among all starts of all nodes.
    epoch: i64,
}

impl From<&Node> for NodeView {
    fn from(node: &Node) -> Self {
        let (name, pools) = (node.name.clone(), node.pools.clone());
        Self { name, role: node.role, pools, epoch: node.epoch.0 }
    }
}

/// The store.
#[derive(Serialize, ToSchema)]
struct StoreView {
    /// What it is.
    kind: String,
    /// Whether it takes writes.
    state: Up,
    /// Why not, if it takes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The settings of a PostgreSQL server that decide whether commits survive a crash, as Redrive's sessions have
    /// them; null for SQLite.
    durability: Option<Durability>,
}

/// What waits.
#[derive(Serialize, ToSchema)]
struct QueueView {
    /// Deliveries that wait in the store.
    depth: Option<u64>,
    /// The urgent ones.
    high: Option<u64>,
    /// The usual ones, and those that are sent in order.
    normal: Option<u64>,
    /// The others.
    low: Option<u64>,
    /// Deliveries that nodes have in hand.
    leased: Option<u64>,
    /// For how many seconds the longest overdue delivery has been due.
    lag_seconds: Option<f64>,
}

/// Requests under way.
#[derive(Serialize, ToSchema)]
struct SlotsView {
    /// So many are taken.
    used: usize,
    /// Of so many.
    total: usize,
}

/// Circuits by state.
#[derive(Serialize, ToSchema)]
struct CircuitsView {
    /// Open.
    open: usize,
    /// Half open.
    half_open: usize,
    /// Open for more than an hour.
    open_over_1h: usize,
}

impl StatusView {
    fn new(status: &Status<'_>) -> Self {
        let waiting =
            |priority: Priority| status.vitals.as_ref().map(|vitals| vitals.waiting[priority as usize]);
        let (name, pools) = (status.identity.node.clone(), status.pools.to_vec());
        let node = || NodeView {
            name: name.clone(),
            role: status.role,
            pools: pools.clone(),
            epoch: status.epoch.0,
        };
        let nodes: Vec<_> = status.nodes.iter().map(NodeView::from).collect();
        Self {
            status: status.level(),
            findings: status.findings.clone(),
            node: node(),
            version: env!("CARGO_PKG_VERSION"),
            started_at: status.identity.started_at,
            // A store of one's own lists nobody.
            nodes: if nodes.is_empty() { vec![node()] } else { nodes },
            store: StoreView {
                kind: status.identity.store.clone(),
                state: Up::of(status.store_down.is_none()),
                error: status.store_down.clone(),
                durability: status.durability.clone(),
            },
            redis: status.redis.map(Up::of),
            rabbitmq: status.broker.map(Up::of),
            mail: status.mail.map(Up::of),
            queue: QueueView {
                depth: status.vitals.as_ref().map(|vitals| vitals.waiting.iter().sum()),
                high: waiting(Priority::High),
                normal: waiting(Priority::Normal),
                low: waiting(Priority::Low),
                leased: status.vitals.as_ref().map(|vitals| vitals.leased),
                lag_seconds: status.lag().map(|lag| lag.as_secs_f64()),
            },
            slots: SlotsView { used: status.load.unsettled, total: status.load.slots },
            circuits: CircuitsView {
                open: status.circuits.open,
                half_open: status.circuits.half_open,
                open_over_1h: status.circuits.open_over_an_hour,
            },
            dead_letters: status.vitals.as_ref().map(|vitals| vitals.dead),
        }
    }
}

/// How is the installation doing?
///
/// Every node answers, workers too, and while the store is away as well. `redrive status` prints it.
#[utoipa::path(
    get, path = "/v1/status", tag = "health",
    responses(
        (status = 200, description = "What was found out", body = StatusView),
        ReadProblems,
    ),
)]
async fn status(State(app): State<AppState>, _: May<Administers>) -> Result<axum::Json<StatusView>, Problem> {
    Ok(axum::Json(StatusView::new(&app.status().await)))
}
