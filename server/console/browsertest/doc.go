// Package browsertest holds the test that drives the console in a real, headless
// Chromium. It stands apart so that a machine without one can leave it out.
package browsertest
