//! Options whose value is the name of a profile or a file: shells complete the names.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use faultline_scenario::profile::EMBEDDED;

/// A parser that also lists the names of the profiles that come with Faultline. Other values are left to the inner
/// parser.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProfileNames<P>(pub(crate) P);

impl<P: TypedValueParser> TypedValueParser for ProfileNames<P> {
    type Value = P::Value;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Self::Value, clap::Error> {
        self.0.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = EMBEDDED.iter().map(|(name, _)| PossibleValue::new(*name));
        Some(Box::new(names))
    }
}
