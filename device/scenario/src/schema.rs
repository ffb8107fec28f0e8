//! The JSON schemas of scenario files and of profiles, for editors.

use schemars::Schema;

use crate::file::Scenario;
use crate::profile::Profile;

/// The schema of scenario files. Editors use it for files whose first line is `#:schema PATH`.
pub fn schema() -> Schema {
    schemars::schema_for!(Scenario)
}

/// The schema as the text of `docs/scenario.schema.json`.
pub fn schema_text() -> String {
    format!("{:#}\n", schema().as_value())
}

/// The schema of profiles as the text of `docs/profile.schema.json`.
pub fn profile_text() -> String {
    format!("{:#}\n", schemars::schema_for!(Profile).as_value())
}
