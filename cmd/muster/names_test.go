package main

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
)

// whoAmI is a DNS server in a network namespace until the end of the test: whatever name is
// asked for, the answer is the address that the question came from.
func whoAmI(t *testing.T, namespace, addr string) {
	t.Helper()
	type opened struct {
		conn *net.UDPConn
		err  error
	}
	done := make(chan opened)
	go func() {
		runtime.LockOSThread() // and never unlocked, so that the thread ends in that network
		var o opened
		if o.err = enter(namespace); o.err == nil {
			o.conn, o.err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 53)))
		}
		done <- o
	}()
	o := <-done
	if o.err != nil {
		t.Fatal(o.err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { answerNames(t, o.conn) })
	t.Cleanup(func() {
		_ = o.conn.Close()
		serving.Wait()
	})
}

func answerNames(t *testing.T, conn *net.UDPConn) {
	for buf := make([]byte, 1500); ; {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, err = conn.WriteToUDPAddrPort(answer(buf[:n], from.Addr().Unmap().As4()), from)
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// answer is the answer to a question for an A record; to all others, that there is none.
func answer(question []byte, addr [4]byte) []byte {
	const header, typeA = 12, 1
	end := header
	for end < len(question) && question[end] != 0 { // the name's labels
		end += 1 + int(question[end])
	}
	end += 5 // the root's label, type and class
	if end > len(question) {
		return nil
	}
	out := append([]byte{}, question[:end]...)
	binary.BigEndian.PutUint16(out[2:], 0x8580) // an authoritative answer; recursion wanted and available
	counts := []uint16{1, 0, 0, 0}
	if binary.BigEndian.Uint16(question[end-4:]) == typeA {
		counts[1] = 1
		out = append(out, 0xc0, header, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4) // of the name above; for no time
		out = append(out, addr[:]...)
	}
	for i, n := range counts {
		binary.BigEndian.PutUint16(out[4+2*i:], n)
	}
	return out
}
