//! Exports: a listing streamed as one CSV or NDJSON response. A failed export must abort the response; it must
//! never end as if it were complete.

mod csv_rows;

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use hyper::body::Frame;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::ToSchema;

use self::csv_rows::CsvRows;
use crate::app::{AppError, export::Pages};

/// Format of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// One JSON object per line, with the fields of the listing.
    #[default]
    Ndjson,
    /// CSV (RFC 4180) with a header row.
    Csv,
}

/// Chunk of an export.
enum Chunk {
    Rows(Bytes),
    /// End of a complete export.
    End,
}

/// Response body of an export.
struct ExportBody(mpsc::Receiver<Chunk>);

/// Error that aborts the response body.
#[derive(Debug, thiserror::Error)]
#[error("export aborted")]
struct ExportAborted;

impl hyper::body::Body for ExportBody {
    type Data = Bytes;
    type Error = ExportAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExportAborted>>> {
        self.0.poll_recv(context).map(|piece| match piece {
            Some(Chunk::Rows(rows)) => Some(Ok(Frame::data(rows))),
            Some(Chunk::End) => None,
            // The writer stopped without sending `End`.
            None => Some(Err(ExportAborted)),
        })
    }
}

/// Reason why an export ends before it is complete.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    /// The next page could not be read.
    #[error(transparent)]
    Read(#[from] AppError),
    /// A row could not be written.
    #[error(transparent)]
    Csv(#[from] csv::Error),
}

/// Streams the pages as a response, with backpressure from the client. `columns` are the columns of a CSV export.
pub(super) fn stream<P: Pages, V: Serialize + From<P::Row>>(
    name: &str,
    format: Format,
    columns: &'static [&'static str],
    mut pages: P,
) -> Response {
    // At most one page is buffered while the client reads the previous one.
    let (send, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(error) = write::<P, V>(&mut pages, format, columns, &send).await {
            tracing::debug!(%error, "export aborted");
        }
    });
    let (kind, extension) = match format {
        Format::Ndjson => ("application/x-ndjson", "ndjson"),
        Format::Csv => ("text/csv; charset=utf-8; header=present", "csv"),
    };
    let mut response = Body::new(ExportBody(pieces)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Ok(disposition) = HeaderValue::try_from(format!("attachment; filename=\"{name}.{extension}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    response
}

async fn write<P: Pages, V: Serialize + From<P::Row>>(
    pages: &mut P,
    format: Format,
    columns: &[&str],
    send: &mpsc::Sender<Chunk>,
) -> Result<(), ExportError> {
    if format == Format::Csv {
        let mut head = CsvRows::default();
        head.add_head(columns)?;
        if send.send(Chunk::Rows(head.into_bytes().into())).await.is_err() {
            return Ok(());
        }
    }
    while let Some(rows) = pages.next().await? {
        let rows = rows.into_iter().map(V::from);
        let text = match format {
            Format::Ndjson => ndjson(rows),
            Format::Csv => {
                let mut text = CsvRows::default();
                for row in rows {
                    text.add(&row, columns)?;
                }
                text.into_bytes()
            }
        };
        // An error means that the client has disconnected.
        if !text.is_empty() && send.send(Chunk::Rows(text.into())).await.is_err() {
            return Ok(());
        }
        if send.is_closed() {
            return Ok(());
        }
    }
    let _ = send.send(Chunk::End).await;
    Ok(())
}

fn ndjson(rows: impl Iterator<Item = impl Serialize>) -> Vec<u8> {
    let mut text = Vec::new();
    for row in rows {
        // Serializing a row that was just read from the store is not expected to fail.
        if serde_json::to_writer(&mut text, &row).is_ok() {
            text.push(b'\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn incomplete_export_aborts_response() {
        let body = |pieces: Vec<Chunk>| {
            let (send, receive) = mpsc::channel(8);
            pieces.into_iter().for_each(|piece| assert!(send.try_send(piece).is_ok()));
            ExportBody(receive).collect()
        };
        let rows = || Chunk::Rows("a\n".into());
        assert_eq!(body(vec![rows(), rows(), Chunk::End]).await.unwrap().to_bytes(), "a\na\n");
        assert!(body(vec![rows()]).await.is_err(), "the writer has failed");
    }
}
