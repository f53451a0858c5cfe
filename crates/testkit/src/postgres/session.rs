//! Short database sessions, one per call, in which a test reads or changes data.

use std::path::Path;

use tokio_postgres::{Client, Error, NoTls, SimpleQueryMessage};

/// Creates the database with a collation like that of most servers, in which `a` sorts before `B`.
const CREATE_DATABASE: &str =
    "CREATE DATABASE redrive TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US'";

pub(super) async fn connect(url: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    // The connection task ends with the client, and the client returns every relevant error.
    tokio::spawn(connection);
    Ok(client)
}

/// Runs one query and returns its rows, every value as text and null as `NULL`.
pub(super) async fn query(url: &str, sql: &str) -> Vec<Vec<String>> {
    let row = |message: SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|n| row.get(n).unwrap_or("NULL").to_owned()).collect())
        }
        _ => None,
    };
    run(url, sql).await.into_iter().filter_map(row).collect()
}

/// Runs one or more statements and returns the number of rows affected or returned.
pub(super) async fn execute(url: &str, sql: &str) -> u64 {
    let count = |message: SimpleQueryMessage| match message {
        SimpleQueryMessage::CommandComplete(rows) => rows,
        _ => 0,
    };
    run(url, sql).await.into_iter().map(count).sum()
}

async fn run(url: &str, sql: &str) -> Vec<SimpleQueryMessage> {
    let run = async { connect(url).await?.simple_query(sql).await };
    run.await.unwrap_or_else(|error| panic!("{sql}: {}", with_context(&error)))
}

/// Returns whether the server of this folder accepts connections at this port. Creates the database `redrive` if
/// it does not exist.
pub(super) async fn is_ready(port: u16, folder: &Path) -> bool {
    make_database(port, &folder.join("data")).await.unwrap_or(false)
}

async fn make_database(port: u16, data: &Path) -> Result<bool, Error> {
    let client = connect(&url(port, "postgres")).await?;
    // Another server may have taken the port first.
    let shown: String = client.query_one("SHOW data_directory", &[]).await?.get(0);
    if Path::new(&shown) != data {
        return Ok(false);
    }
    let there = "SELECT 1 FROM pg_database WHERE datname = 'redrive'";
    if client.query_opt(there, &[]).await?.is_some() {
        return Ok(true);
    }
    match client.batch_execute(CREATE_DATABASE).await {
        // Old servers, and those built without ICU, get their default collation.
        Err(error) if error.as_db_error().is_some() => {
            client.batch_execute("CREATE DATABASE redrive").await?
        }
        created => created?,
    }
    Ok(true)
}

pub(super) fn url(port: u16, database: &str) -> String {
    format!("postgres://redrive@127.0.0.1:{port}/{database}")
}

/// Formats an error with the server's message, which its own text omits.
fn with_context(error: &Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
