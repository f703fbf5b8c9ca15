// Command webapp is what tests deploy: a page that says who it is, by UDP as well, and a health that can be broken.
package main

import (
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sync/atomic"
)

func main() {
	var broken atomic.Bool
	var failed atomic.Int64
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, os.Getenv("NAME")) })
	http.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		if broken.Load() {
			http.Error(w, fmt.Sprintf("broken for the %d. time", failed.Add(1)), http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("POST /break", func(http.ResponseWriter, *http.Request) { broken.Store(true) })
	http.HandleFunc("POST /mend", func(http.ResponseWriter, *http.Request) { broken.Store(false) })
	http.HandleFunc("/failed", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, failed.Load()) })
	packets, err := net.ListenPacket("udp", ":"+os.Getenv("PORT"))
	if err != nil {
		log.Fatal(err)
	}
	go answer(packets)
	fmt.Println("it begins")
	log.Fatal(http.ListenAndServe(":"+os.Getenv("PORT"), nil))
}

// answer says to every packet who it is.
func answer(packets net.PacketConn) {
	for {
		_, from, err := packets.ReadFrom(make([]byte, 1))
		if err == nil {
			_, err = packets.WriteTo([]byte(os.Getenv("NAME")), from)
		}
		if err != nil {
			log.Print(err)
		}
	}
}
