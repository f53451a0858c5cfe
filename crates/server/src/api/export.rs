//! Exports: a listing as one long answer, CSV or NDJSON, written while it is read. What cannot be finished is
//! broken off, never ended as if it were whole.

mod csv;

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

use crate::app::{AppError, export::Pages};

/// How an export is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// One JSON object a line, as the listing has it.
    #[default]
    Ndjson,
    /// A table by RFC 4180, with a head.
    Csv,
}

/// A piece of an export.
enum Piece {
    Rows(Bytes),
    /// There is no more.
    End,
}

/// The body of an export.
struct Pieces(mpsc::Receiver<Piece>);

/// Why an answer was broken off.
#[derive(Debug, thiserror::Error)]
#[error("an export was broken off")]
struct BrokenOff;

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        self.0.poll_recv(context).map(|piece| match piece {
            Some(Piece::Rows(rows)) => Some(Ok(Frame::data(rows))),
            Some(Piece::End) => None,
            // Whoever writes has given up, for whatever reason.
            None => Some(Err(BrokenOff)),
        })
    }
}

/// Writes what is exported to whoever reads it, no faster than that. `columns` are what a table has.
pub(super) fn stream<P: Pages, V: Serialize + From<P::Row>>(
    name: &str,
    format: Format,
    columns: &'static [&'static str],
    mut pages: P,
) -> Response {
    // One page waits while the one before it is read.
    let (send, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        if let Err(error) = write::<P, V>(&mut pages, format, columns, &send).await {
            tracing::debug!(%error, "an export is broken off");
        }
    });
    let (kind, ending) = match format {
        Format::Ndjson => ("application/x-ndjson", "ndjson"),
        Format::Csv => ("text/csv; charset=utf-8; header=present", "csv"),
    };
    let mut answer = Body::new(Pieces(pieces)).into_response();
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Ok(named) = HeaderValue::try_from(format!("attachment; filename=\"{name}.{ending}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, named);
    }
    answer
}

async fn write<P: Pages, V: Serialize + From<P::Row>>(
    pages: &mut P,
    format: Format,
    columns: &[&str],
    send: &mpsc::Sender<Piece>,
) -> Result<(), AppError> {
    if format == Format::Csv && send.send(Piece::Rows(csv::head(columns).into())).await.is_err() {
        return Ok(());
    }
    while let Some(rows) = pages.next().await? {
        let mut text = Vec::new();
        for row in rows {
            match format {
                Format::Ndjson => {
                    // What is written here was read from the store a moment ago.
                    if serde_json::to_writer(&mut text, &V::from(row)).is_ok() {
                        text.push(b'\n');
                    }
                }
                Format::Csv => csv::row(&mut text, &V::from(row), columns),
            }
        }
        // An error: nobody reads any more.
        if !text.is_empty() && send.send(Piece::Rows(text.into())).await.is_err() {
            return Ok(());
        }
        if send.is_closed() {
            return Ok(());
        }
    }
    let _ = send.send(Piece::End).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn what_was_not_finished_is_broken_off() {
        let body = |pieces: Vec<Piece>| {
            let (send, receive) = mpsc::channel(8);
            pieces.into_iter().for_each(|piece| assert!(send.try_send(piece).is_ok()));
            Pieces(receive).collect()
        };
        let rows = || Piece::Rows("a\n".into());
        assert_eq!(body(vec![rows(), rows(), Piece::End]).await.unwrap().to_bytes(), "a\na\n");
        assert!(body(vec![rows()]).await.is_err(), "whoever wrote it has given up");
    }
}
