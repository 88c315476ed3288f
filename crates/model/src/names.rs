//! Enumerations whose values have names on the command line, in files and in results.

/// Defines an enumeration with a name for each value.
///
/// `$what` describes a value, with an article, for the error that a name is unknown. The type gets `ALL`, its values in the order of definition,
/// `name`, and implements [`Display`](std::fmt::Display) and [`FromStr`](std::str::FromStr) by the names.
#[macro_export]
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $name:ident, $what:literal {
        $($(#[$variant_attribute:meta])* $variant:ident = $text:literal),+ $(,)?
    }) => {
        $(#[$attribute])*
        pub enum $name { $($(#[$variant_attribute])* $variant),+ }

        impl $name {
            /// All values.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// Returns the name on the command line, in files and in results.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::names::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                $crate::names::find(&Self::ALL, Self::name, $what, text)
            }
        }
    };
}

/// Error for a name that is not one of the known names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}\n  hint: there are {known}")]
pub struct UnknownName {
    what: &'static str,
    text: String,
    known: String,
}

/// Returns the value of `all` with the name `text`. `what`: description of a value, with an article, for the error.
pub fn find<T: Copy>(all: &[T], name: fn(T) -> &'static str, what: &'static str, text: &str) -> Result<T, UnknownName> {
    all.iter().copied().find(|value| name(*value) == text).ok_or_else(|| UnknownName {
        what,
        text: text.to_owned(),
        known: all.iter().map(|value| name(*value)).collect::<Vec<_>>().join(", "),
    })
}
