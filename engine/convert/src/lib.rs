//! From checkpoint to store, and what a store is worth: conversion, calibration, perplexity and divergence.

pub mod calibrate;
pub mod convert;
pub mod in_place;
pub mod judge;
