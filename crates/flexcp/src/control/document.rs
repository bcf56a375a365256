//! The API's document (OpenAPI 3.1): what `routes` describes, and who may ask.

use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr};

use super::routes;

/// The document of the API (OpenAPI 3.1), in JSON, as it is answered on the socket: nobody has to send a token there.
#[must_use]
pub fn document() -> String {
    let mut document = routes::described().split_for_parts().1;
    name_scheme(&mut document);
    text(&document)
}

/// The same over TCP: whoever asks there sends the token.
pub(super) fn document_over_tcp() -> String {
    let mut document = routes::described().split_for_parts().1;
    name_scheme(&mut document);
    document.security = Some(vec![SecurityRequirement::new(SCHEME, Vec::<String>::new())]);
    for item in document.paths.paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.patch,
            &mut item.post,
            &mut item.delete,
        ];
        for operation in operations.into_iter().flatten() {
            let answers = &mut operation.responses.responses;
            answers.insert(
                "401".into(),
                RefOr::T(refusal("The token is missing or wrong.")),
            );
            answers.insert(
                "403".into(),
                RefOr::T(refusal("The request is for another host.")),
            );
        }
    }
    text(&document)
}

fn name_scheme(document: &mut OpenApi) {
    let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
        "The token of `token_file` in [control]. It is asked for over TCP alone: who may open the socket needs none.",
    ));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(SCHEME, SecurityScheme::Http(scheme.build()));
}

fn refusal(why: &str) -> Response {
    let schema = Ref::from_schema_name("Refusal");
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new()
        .description(why)
        .content("application/json", content)
        .build()
}

fn text(document: &OpenApi) -> String {
    // It is made of strings alone.
    document.to_json().unwrap_or_default()
}

/// What the scheme is called in the document.
const SCHEME: &str = "token";
