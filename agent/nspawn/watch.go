package nspawn

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Watch tells which machines may have changed by themselves. A supervisor has the lock file open as long as it
// lives, so that closing tells of its end, however it ends and whoever started it.
func (d *Driver) Watch(ctx context.Context) <-chan string {
	return d.watchLocks(ctx, filepath.Join(d.opts.StateDir, "locks"), d.names)
}

// watchLocks sends the names of the locks in a directory that are closed, or all of them.
func (d *Driver) watchLocks(ctx context.Context, dir string, all func() ([]string, error)) <-chan string {
	out := make(chan string)
	events, err := watchCloses(dir)
	if err != nil {
		d.opts.Logger.Error("cannot watch what runs; ends show when they are listed", "err", err)
	}
	go func() {
		defer close(out)
		if events == nil {
			<-ctx.Done()
			return
		}
		defer events.Close()
		stop := context.AfterFunc(ctx, func() { _ = events.Close() })
		defer stop()
		if err := relay(ctx, events, out, all); err != nil && ctx.Err() == nil {
			d.opts.Logger.Error("no longer watching what runs; ends show when they are listed", "err", err)
			<-ctx.Done()
		}
	}()
	return out
}

// watchCloses opens a file of the kernel's events of closed writers in a directory.
func watchCloses(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CLOSE_WRITE); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("inotify %s: %w", dir, err)
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

// echo is after what time a name is sent once more. The kernel tells of a close before it gives the lock free, so that
// whoever looks at once may find it held.
const echo = 100 * time.Millisecond

// relay sends the names that events tell of, each twice; all of them when the kernel has dropped some.
func relay(ctx context.Context, events *os.File, out chan<- string, all func() ([]string, error)) error {
	send := func(names []string) bool {
		for _, name := range names {
			select {
			case out <- name:
			case <-ctx.Done():
				return false
			}
		}
		return true
	}
	buf := make([]byte, 16<<10)
	again := map[string]bool{} // what is to be sent once more
	for {
		n, err := events.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			names := slices.Collect(maps.Keys(again))
			clear(again)
			if err := events.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
			if !send(names) {
				return nil
			}
			continue
		}
		if err != nil {
			return err
		}
		names, overflow := closed(buf[:n])
		if overflow {
			if names, err = all(); err != nil {
				return err
			}
		}
		if !send(names) {
			return nil
		}
		if len(again) == 0 { // else it is due already, however many come
			if err := events.SetReadDeadline(time.Now().Add(echo)); err != nil {
				return err
			}
		}
		for _, name := range names {
			again[name] = true
		}
	}
}

// closed returns the names in a read of inotify events, and whether the kernel has dropped some.
func closed(events []byte) (names []string, overflow bool) {
	for len(events) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(events[4:])
		length := int(binary.NativeEndian.Uint32(events[12:]))
		name := events[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+length]
		if text := string(bytes.TrimRight(name, "\x00")); text != "" {
			names = append(names, text)
		}
		overflow = overflow || mask&unix.IN_Q_OVERFLOW != 0
		events = events[unix.SizeofInotifyEvent+length:]
	}
	return names, overflow
}
