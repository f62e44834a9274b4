//! A request with its body read: what most routes begin with.

use super::Caller;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::Extension;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts};
use axum::http::{Request, Response, StatusCode};
use std::sync::Arc;

/// What a route answers.
pub type Answered = Result<Response<Body>, ApiError>;

/// Who asks what.
pub struct Asked {
    /// The server.
    pub app: Arc<App>,
    /// Whose request it is.
    pub caller: Caller,
    /// The fields of its body.
    pub fields: Fields,
}

impl FromRequest<Arc<App>> for Asked {
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, app: &Arc<App>) -> Result<Self, ApiError> {
        let (mut head, body) = request.into_parts();
        let caller = Extension::<Caller>::from_request_parts(&mut head, app).await;
        let unknown =
            |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request has not been authenticated");
        let Extension(caller) = caller.map_err(unknown)?;
        let body = app.body(Request::from_parts(head, body)).await?;
        let fields = Fields::parse(&body, caller.notes())?;
        Ok(Self { app: Arc::clone(app), caller, fields })
    }
}
