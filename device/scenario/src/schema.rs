//! The JSON schema of scenario files, for editors.

use schemars::Schema;

use crate::file::Scenario;

/// The schema of scenario files. Editors use it for files whose first line is `#:schema PATH`.
pub fn schema() -> Schema {
    schemars::schema_for!(Scenario)
}

/// The schema as the text of `docs/scenario.schema.json`.
pub fn schema_text() -> String {
    format!("{:#}\n", schema().as_value())
}
