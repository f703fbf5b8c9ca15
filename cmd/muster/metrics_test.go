package main

import (
	"bufio"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// numbers are the metrics of a server by name, with the labels as they are written.
type numbers map[string]float64

// metrics reads the server's /metrics.
func (s *server) metrics() numbers {
	s.t.Helper()
	response, err := http.Get(s.url + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	read := readMetrics(response.Body)
	if len(read) < 20 {
		s.t.Fatalf("only %d metrics were read", len(read))
	}
	return read
}

func readMetrics(text io.Reader) numbers {
	read := numbers{}
	for lines := bufio.NewScanner(text); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if number, err := strconv.ParseFloat(value, 64); err == nil && name != "#" {
			read[name] = number
		}
	}
	return read
}

// served is how much of what was delivered came from a source.
func (n numbers) served(source string) float64 {
	return n[`muster_transport_served_total{source="`+source+`"}`]
}
