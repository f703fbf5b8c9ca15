package store_test

import (
	"fmt"
	"testing"

	"github.com/muster-cloud/muster"
	"github.com/muster-cloud/muster/registry/store"
)

func BenchmarkStore_Commit1(b *testing.B)  { benchmarkCommit(b, 1) }
func BenchmarkStore_Commit64(b *testing.B) { benchmarkCommit(b, 64) }

// benchmarkCommit writes instances, each with its change, so many a transaction.
func benchmarkCommit(b *testing.B, objects int) {
	s := open(b, store.Options{Dir: b.TempDir()})
	j := newJournal(load(b, s))
	node := aNode(1)
	commit(b, s, j.batch(node))
	next := 0
	for b.Loop() {
		all := make([]any, objects)
		for i := range all {
			next++
			all[i] = anInstance(next%5000+1, node)
		}
		commit(b, s, j.batch(all...))
	}
	b.ReportMetric(float64(b.N*objects)/b.Elapsed().Seconds(), "objects/s")
}

func BenchmarkStore_Load60k(b *testing.B) {
	s := open(b, store.Options{Dir: b.TempDir()})
	fill(b, s, 10_000, 50_000)
	b.ResetTimer()
	for b.Loop() {
		if state := load(b, s); len(state.Nodes) != 10_000 || len(state.Instances) != 50_000 {
			b.Fatalf("loaded %d nodes and %d instances", len(state.Nodes), len(state.Instances))
		}
	}
}

// fill commits so many nodes and instances on them.
func fill(tb testing.TB, s *store.Store, nodes, instances int) {
	j := newJournal(load(tb, s))
	all := make([]any, 0, nodes+instances)
	for n := range nodes {
		all = append(all, aNode(n+1))
	}
	for n := range instances {
		all = append(all, anInstance(n+1, all[n%nodes].(*muster.Node)))
	}
	for len(all) > 0 {
		n := min(len(all), 2000)
		commit(tb, s, j.batch(all[:n]...))
		all = all[n:]
	}
}

// BenchmarkStore_LastChanges is what a page of 100 instances with the 10 newest
// changes of each costs, in a log of 100,000.
func BenchmarkStore_LastChanges(b *testing.B) {
	s := open(b, store.Options{Dir: b.TempDir()})
	node := aNode(1)
	j := newJournal(load(b, s))
	commit(b, s, j.batch(node))
	for range 100 {
		all := make([]any, 1000)
		for i := range all {
			all[i] = anInstance(i+1, node)
		}
		commit(b, s, j.batch(all...))
	}
	var ids []string
	for n := range 100 {
		ids = append(ids, fmt.Sprintf("i-%d", n*7+1))
	}
	b.ResetTimer()
	for b.Loop() {
		last, err := s.LastChanges(b.Context(), ids, 10)
		if err != nil || len(last) != len(ids) || len(last["i-1"]) != 10 {
			b.Fatalf("got the changes of %d objects: %v", len(last), err)
		}
	}
}
