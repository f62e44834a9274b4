//! The routes as one connection has them: its place is busy from the head of a request to the end of its answer.

use crate::connections::{Busy, ConnectionPlace};
use crate::error::{ApiError, Dialect};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONNECTION, HeaderValue};
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The routes, for one connection.
pub struct Watched {
    routes: TowerToHyperService<Router>,
    place: Arc<ConnectionPlace>,
}

impl Watched {
    pub fn new(routes: Router, place: Arc<ConnectionPlace>) -> Self {
        Self { routes: TowerToHyperService::new(routes), place }
    }
}

impl Service<Request<Incoming>> for Watched {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let path = request.uri().path();
        let Some(busy) = self.place.begin(path == "/health") else {
            let refused = full(Dialect::of(path, false));
            return Box::pin(std::future::ready(Ok(refused)));
        };
        let answer = self.routes.call(request);
        Box::pin(async move { Ok(answer.await?.map(|body| Body::new(WatchedBody { body, _busy: busy }))) })
    }
}

/// The refusal of a request for which there is no room.
fn full(dialect: Dialect) -> Response<Body> {
    let message = "all connections are busy; try again later";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("connections_full");
    let body = error.body_in(dialect).to_string();
    let mut response = error.into_response();
    *response.body_mut() = Body::from(body);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The body of an answer, while which a place is busy.
struct WatchedBody {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for WatchedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
