// Package sim runs many agents on hollow hosts in one process against a real
// server, launches instances on them and counts what happens: a load test, and a
// demonstration.
//
// The agents are real ones, each with its own identity, loops and port for
// nudges; only their machines are hollow (agent/hollow). They share one client
// and its connections, so that their number says little about the server's
// sockets. Everything that a simulation makes carries the label Label with the
// simulation's prefix, runs only on nodes of its own, and can be cleaned up. It
// does NOT outlive its process: the nodes fall silent with it.
package sim
