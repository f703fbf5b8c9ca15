// Package deploy brings services into instances: it has their files fetched and unpacked,
// their processes kept, their ports published and their checks run, and says how they are.
//
// A Manager is told everything that is wanted on the node, and works towards it: one
// service at a time never waits for another. What runs is taken over after a restart of the
// agent: the same process, the same log. Until its checks had the time to find what they find
// nothing is said of such a service, so that a new agent is no news.
//
// It does NOT launch instances, and does NOT decide what should run.
package deploy
