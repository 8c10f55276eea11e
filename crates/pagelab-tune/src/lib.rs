//! Huge pages for one program: its profile ([`profile`]), the plan that follows from it ([`region_plan`]) and
//! its application ([`apply`]), and the comparison of none, the planned and all huge pages ([`tuning`]).

pub mod apply;
pub mod profile;
pub mod profile_source;
pub mod region_plan;
pub mod tuning;
