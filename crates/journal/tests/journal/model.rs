//! Random histories against a model.
