"""The checks, one module for each area. A check is an async function in the CHECKS of its module."""
