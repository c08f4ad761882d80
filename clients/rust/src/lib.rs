//! Client library of hicached for engines and routers.

pub mod bus;
pub mod shm;
