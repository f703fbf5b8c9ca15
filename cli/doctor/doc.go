// Package doctor examines a machine for an agent: whether instances can run on
// it, and whether its agent will find its server.
//
// Gather looks, Examine judges. Gather changes nothing and needs no root, but
// sees more with it; whatever it could not look at is said to be unchecked, never
// to be well. Whether instances can run is what the driver itself checks when an
// agent starts, so that both say the same. Nothing here proves that an instance
// would run: that is what launching one is for.
package doctor
