// Package tooltest has nothing but tests: nginx, HAProxy and Prometheus read what the
// example templates make of a real server's registrations.
package tooltest
