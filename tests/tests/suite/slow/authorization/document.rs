//! The parts of the server's OpenAPI document that the authorization tests need.

use redrive_testkit::Api;
use serde_json::Value;

/// The OpenAPI document of a running server.
pub(crate) struct Document(Value);

/// One operation of the document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    /// The HTTP method in upper case.
    pub(crate) method: String,
    /// The path with its placeholders.
    pub(crate) path: String,
}

/// The part of a request that names the tenant to act for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantIn {
    Query,
    Body,
    Nowhere,
}

impl Document {
    pub(crate) async fn load(api: &Api) -> Self {
        Self(api.without_key().get("/openapi.json").await.expect(200))
    }

    /// Returns every operation.
    pub(crate) fn routes(&self) -> Vec<Route> {
        const METHODS: [&str; 8] = ["get", "put", "post", "delete", "options", "head", "patch", "trace"];
        let paths = self.0["paths"].as_object().expect("a document has paths");
        let of_path = |(path, item): (&String, &Value)| {
            let methods = METHODS.into_iter().filter(|method| item.get(method).is_some());
            let route = |method: &str| Route { method: method.to_uppercase(), path: path.clone() };
            methods.map(route).collect::<Vec<_>>()
        };
        paths.iter().flat_map(of_path).collect()
    }

    /// Returns whether a route has this query parameter.
    pub(crate) fn takes_query(&self, route: &Route, name: &str) -> bool {
        let parameters = self.operation(route)["parameters"].as_array().cloned().unwrap_or_default();
        parameters.iter().any(|one| one["in"] == "query" && one["name"] == name)
    }

    /// Returns whether the body of a route may have this field.
    pub(crate) fn takes_field(&self, route: &Route, name: &str) -> bool {
        let content = &self.operation(route)["requestBody"]["content"]["application/json"];
        self.has_property(&content["schema"], name)
    }

    /// Returns where a route takes the tenant to act for. The query has precedence, because a body may be an update.
    pub(crate) fn tenant_in(&self, route: &Route) -> TenantIn {
        match (self.takes_query(route, "tenant_id"), self.takes_field(route, "tenant_id")) {
            (true, _) => TenantIn::Query,
            (false, true) => TenantIn::Body,
            (false, false) => TenantIn::Nowhere,
        }
    }

    fn operation(&self, route: &Route) -> &Value {
        let operation = &self.0["paths"][&route.path][route.method.to_lowercase()];
        assert!(operation.is_object(), "the document has no {} {}", route.method, route.path);
        operation
    }

    /// Returns whether a schema has a property, following references and composed schemas.
    fn has_property(&self, schema: &Value, name: &str) -> bool {
        if let Some(reference) = schema["$ref"].as_str() {
            let pointer = reference.trim_start_matches('#');
            let schema = self.0.pointer(pointer).unwrap_or_else(|| panic!("{reference} leads nowhere"));
            return self.has_property(schema, name);
        }
        let parts = ["allOf", "anyOf", "oneOf"].iter().filter_map(|kind| schema[*kind].as_array());
        schema["properties"].get(name).is_some() || parts.flatten().any(|part| self.has_property(part, name))
    }
}
