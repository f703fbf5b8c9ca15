// Package simulation runs whole clusters in one process under virtual time and
// bad weather: real agents on fake hosts, the real registry on a real SQLite
// database, and between them a network that drops, delays, doubles and reorders
// calls. Servers and agents are killed, hosts restart, disks stall and refuse,
// wall clocks are set, while people launch, stop and remove, and watchers follow.
//
// It promises that each decision comes from one seed, each actor with dice of its
// own, so that a seed tells the same story again as far as Go's scheduler lets
// it; and that what holds of every history (invariants_test.go, book_test.go) is
// asked along the way and again once the weather has cleared.
//
// It does NOT promise byte-for-byte repeats: goroutines that are due at the same
// instant run in any order. It does not simulate HTTP or GraphQL, a process that
// stands still, or a disk that lies.
//
// There is nothing here to import: everything is in the tests. Run one seed again
// with
//
//	go test ./internal/simulation -run 'TestSimulation$' -simulation.first=17 -simulation.seeds=1 -simulation.log
package simulation
