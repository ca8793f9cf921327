//! Decisions without sockets and stores: rules and their files, algorithms, calendars and the clock.
//!
//! | module | contains | does not contain |
//! |---|---|---|
//! | [`config`] | parsing of rules files (INI, JSON) into validated rules, or a report of every problem with its line; conversion of YAML of ratelimit, limitador and Kuadrant | counting |
//! | [`rules`] | the operator's rules, compiled: the limits that apply to an operation | time, counters |
//! | [`calendar`] | calendar windows: when a day or a month begins and ends in a time zone | counting, the current time |
//! | [`algorithm`] | pure decisions: (limit, state, request, time) → (outcome, state) | clocks, I/O |
//! | [`json`] | objects, whole numbers and messages, for JSON from operators and clients | the structure of files and bodies |
//! | [`clock`] | reading of the clock, which happens nowhere else | |
//! | [`regular_file`] | reading of files that operators name, without waiting | their format |
//! | [`suggestion`] | the known word that a misspelled one stands for, and lists of words | |
//! | [`units`] | times and sizes as operators write them | flags |
//!
//! Imports go downward only: `config` → `rules` → `calendar` → `algorithm` → `clock`, and to `json`,
//! `regular_file`, `suggestion` and `units`. The module `units` imports the `clock`, too.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, clippy::string_slice, reason = "a test may ask the clock, and panic")
)]

/// Declares the values of a label, or other words that programs and operators read: each with its text, and the list of all.
#[macro_export]
macro_rules! named_values {
    ($(#[$attribute:meta])* $label:ident {
        $($(#[$value_attribute:meta])* $value:ident = $text:literal,)+
    }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $label {
            $($(#[$value_attribute])* $value,)+
        }

        impl $label {
            /// All values, in the order of declaration: `value as usize` is the place of a value.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// Returns the value's text.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }
        }

        impl ::std::fmt::Display for $label {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub mod algorithm;
pub mod calendar;
pub mod clock;
pub mod config;
pub mod json;
pub mod regular_file;
pub mod rules;
pub mod suggestion;
pub mod units;
