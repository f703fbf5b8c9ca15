// Package images keeps the archives of images in the server's data directory: a
// file for each digest, in the archive's canonical form.
//
// It promises that an archive appears whole or not at all, also when the process is
// killed or the disk fills up; that one which is refused leaves nothing; that the
// same tree is kept once, whatever its names; and that the disk keeps some room, since
// the database is on it too. It does NOT know names: those are the registry's, which
// says what is still needed.
package images
