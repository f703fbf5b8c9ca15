// Package hollow is a driver whose machines exist in memory only: they run at
// once, use nothing, and can end by themselves at random. With it thousands of
// agents fit into one process, to load a registry and to show how it behaves.
//
// It promises what driver.Driver does of names, disks and generations. It does
// NOT promise that machines outlive the process, and it runs no command: what
// a real host does is agent/nspawn's to show.
package hollow
